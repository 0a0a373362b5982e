"""The HTML report in Chromium: it renders, sorts, filters, follows links, prints, and stays fluent at 10,000 rows.

Debian's chromium (`apt-get install chromium`) or any other on the PATH; CHROMIUM names another one. Skipped where there
is none. Limits of time are ten times what a loaded two-core machine took, so that they fail a page that lays out every
row (10,000 rows: 20 s), not a slow machine.
"""

from __future__ import annotations

import os
import shutil
import time

import pytest

from fa4verify.reports import html, summarise
from fa4verify.reports.figures import figures
from fa4verify.vocabulary import Budget, Finding, Verdict
from tests.reports.contrast import ratio_of
from tests.reports.make import HOSTILE, case, record, run
from tests.reports.pictured import everything, failing, metrics

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH (apt-get install chromium)")
MANY = 10_000
BUDGET = Budget("o-model", "o", "rmse", "absolute", 3e-4, "made by hand")

# For every piece of text that is shown: its colour and the first opaque ground beneath it.
COLOURS = """() => {
  const found = {};
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    const said = walk.currentNode.textContent.trim();
    if (!said || !element.checkVisibility() || element.closest("script, style")) continue;
    let under = element;
    while (under && getComputedStyle(under).backgroundColor === "rgba(0, 0, 0, 0)") under = under.parentElement;
    const style = getComputedStyle(element);
    const ink = element.closest("svg") ? style.fill : style.color;
    const ground = getComputedStyle(under || document.body).backgroundColor;
    found[ink + "|" + ground] = said.slice(0, 40);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Open a report of these records; what the console says, or a request, fails the test at its end."""
    complaints: list[str] = []
    contexts = []

    def open_page(*records, scheme="light", script=True, drawn=(), **more):
        path = tmp_path / f"{len(contexts)}.html"
        path.write_text(html.render(summarise(run(*records, **more)), drawn=drawn), encoding="utf-8")
        context = browser.new_context(color_scheme=scheme, java_script_enabled=script)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != path.as_uri() else None)
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture(scope="module")
def drawn():
    return figures(everything())


def judged(name: str, value: float, outcome="PASS", **fields):
    finding = Finding(f"o rmse {value}", "o", "rmse", value, 3e-4, (0, 3, 1, 5), "o-model", outcome == "PASS")
    given = {"case": case(name, budgets=(BUDGET,)), "verdict": Verdict(outcome, (finding,))}
    return record(name, outcome, **(given | {"metrics": {"o": metrics(value / 2e-4)}} | fields))


def shown(page, operation="forward"):
    """Return the case ids of the rows in a table, from the top."""
    return page.locator(f"#t-{operation} tbody td.id").all_inner_texts()


def rows(page):
    return page.locator("#t-forward tbody tr")


def test_headings_sort_by_number_with_what_has_none_last(visit):
    page = visit(
        judged("b", 2e-4), judged("c", 2e-5), judged("a", 1.9e-4), record("none", "SKIPPED"), judged("d", 4e-4, "FAIL")
    )
    heading = page.locator("#t-forward thead th", has_text="O rmse")
    assert shown(page) == ["b", "c", "a", "none", "d"]
    heading.locator("button").click()
    assert shown(page) == ["c", "a", "b", "d", "none"]
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").press("Enter")
    assert shown(page) == ["d", "b", "a", "c", "none"]
    page.get_by_role("button", name="case", exact=True).click()
    assert shown(page) == ["a", "b", "c", "d", "none"]
    assert heading.get_attribute("aria-sort") is None
    assert "RMSE" in heading.get_attribute("title").upper() or "square" in heading.get_attribute("title")


def test_words_and_boxes_filter_all_tables(visit):
    page = visit(judged("alpha one", 1e-4), judged("alpha two", 1e-4), judged("beta", 4e-4, "FAIL"))
    search = page.get_by_label("Filter")
    search.fill("ALPHA -two")
    rows(page).nth(1).wait_for(state="detached")
    assert shown(page) == ["alpha one"]
    assert "1 of 1 cases shown (3 in all)." in page.locator(".more").first.inner_text()
    search.fill("")
    rows(page).nth(2).wait_for()
    page.locator("input[value=PASS]").uncheck()
    assert shown(page) == ["beta"]


def test_links_lead_to_what_they_name_even_if_it_is_filtered_away(visit):
    page = visit(judged("good", 1e-4), judged("bad", 4e-4, "FAIL"))
    page.locator("input[value=FAIL]").uncheck()
    page.locator("article h3 a").click()
    row = page.locator("#c2")
    row.wait_for()
    assert page.evaluate("document.querySelector(':target') === document.getElementById('c2')") or row.is_visible()
    row.locator("td.id a").click()
    assert page.locator("#f2").evaluate("item => item.matches(':target')")
    page.locator("#f2 a", has_text="where the limit comes from").click()
    assert "made by hand" in page.locator("tr:target").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(visit, drawn, scheme):
    """WCAG 2.2, 1.4.3, level AA: 4.5 to 1, figures included."""
    page = visit(
        *everything(), record("s", "SKIPPED"), record("i", "INCONCLUSIVE"), asked=("gone",), scheme=scheme, drawn=drawn
    )
    pairs = page.evaluate(COLOURS)
    assert len(pairs) >= 8
    for pair, sample in pairs.items():
        ink, ground = pair.split("|")
        assert ratio_of(ink, ground) >= 4.5, (pair, sample)
    grounds = {pair.split("|")[1] for pair in pairs}
    assert ("rgb(255, 255, 255)" in grounds) == (scheme == "light"), "the other palette is in use"


def test_without_script_everything_is_there(visit):
    page = visit(*(judged(f"case {number}", 1e-4) for number in range(300)), failing("bad", "mine"), script=False)
    assert page.locator("#t-forward tbody tr").count() == 301
    assert page.locator("#t-forward tbody tr").last.is_visible()
    assert page.locator(".filter").is_hidden()


def test_on_paper_it_is_black_on_white_and_complete(visit, drawn):
    page = visit(*everything(), scheme="dark", drawn=drawn)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden()
    assert page.locator(".filter").is_hidden()
    assert page.locator("#figures svg").first.is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_nothing_hangs_out_at_the_side(visit, drawn):
    page = visit(*everything(), judged("x" * 400, 1e-4, case=case("x" * 400, kernel="k" * 400)), drawn=drawn)
    page.set_viewport_size({"width": 1000, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 1000


def test_hostile_text_is_text(visit):
    evil = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", HOSTILE, "<x" * 50_000]
    page = visit(*(failing(f"{name}{place}", name, message=name) for place, name in enumerate(evil)))
    assert page.locator("article").count() == len(evil)
    assert page.locator("img").count() == 0
    page.get_by_label("Filter").fill("onerror=alert")
    rows(page).nth(1).wait_for(state="detached")


def test_ten_thousand_cases_stay_fluent(visit):
    records = [judged(f"case-{number:05d}", (1 + (7919 * number) % MANY) * 1e-8) for number in range(MANY)]
    began = time.perf_counter()
    page = visit(*records)
    opened = time.perf_counter() - began
    assert len(shown(page)) == 200
    assert f"200 of {MANY} cases shown." in page.locator(".more").inner_text()
    began = time.perf_counter()
    page.locator("#t-forward thead th", has_text="O rmse").locator("button").click()
    page.get_by_label("Filter").fill("case-0123")
    rows(page).nth(10).wait_for(state="detached")
    acted = time.perf_counter() - began
    values = page.locator("#t-forward tbody tr").evaluate_all(
        "rows => rows.map(row => Number(row.cells[3].textContent))"
    )
    assert values == sorted(values)
    page.evaluate("location.hash = '#c9876'")
    page.locator("#c9876").wait_for()
    assert page.locator("#c9876").is_visible()
    assert opened < 60, "rendering here and opening there"
    assert acted < 10


def test_it_prints_ten_thousand_cases_in_part_and_says_so(visit):
    page = visit(*(judged(f"case-{number}", 1e-4) for number in range(2500)))
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert len(shown(page)) == 2000
    page.emulate_media(media="print")
    assert page.locator(".more").inner_text() == "2000 of 2500 cases shown."
