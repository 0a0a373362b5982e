"use strict";
// Sorts and filters the tables of cases. A table keeps all its rows here and shows the first of those that match, so that
// ten thousand of them cost what two hundred do. It holds no data of its own: what is compared is the text of the cells.
(() => {
  const STEP = 200, PRINTED = 2000;
  const root = document.documentElement;
  try {
    const filter = document.querySelector(".filter");
    const search = document.getElementById("search");
    const boxes = [...document.querySelectorAll(".filter input[type=checkbox]")];
    const tables = [...document.querySelectorAll("table.cases")].map(make);

    function make(table) {
      const body = table.tBodies[0];
      const rows = [...body.rows];
      const state = { body, rows, order: rows, matching: rows, shown: STEP, text: null, keys: new Map() };
      const heads = [...table.tHead.rows[0].cells];
      state.more = document.createElement("div");
      state.more.className = "more";
      const said = document.createElement("span");
      const button = document.createElement("button");
      button.type = "button";
      state.more.append(said, " ", button);
      table.parentElement.after(state.more);
      state.tell = () => {
        const shown = Math.min(state.shown, state.matching.length);
        const all = state.matching.length === rows.length ? "" : ` (${rows.length} in all)`;
        said.textContent = `${shown} of ${state.matching.length} cases shown${all}.`;
        state.more.hidden = shown === rows.length;
        button.hidden = shown >= state.matching.length;
        button.textContent = `Show ${Math.min(5 * STEP, state.matching.length - shown)} more`;
      };
      button.addEventListener("click", () => { state.shown += 5 * STEP; draw(state); });
      heads.forEach((head, column) => {
        const by = document.createElement("button");
        by.type = "button";
        by.append(...head.childNodes);
        head.append(by);
        by.addEventListener("click", () => {
          const down = head.getAttribute("aria-sort") === "ascending";
          heads.forEach((other) => other.removeAttribute("aria-sort"));
          head.setAttribute("aria-sort", down ? "descending" : "ascending");
          sort(state, column, down ? -1 : 1);
          state.shown = STEP;
          match(state);
        });
      });
      return state;
    }

    // A number where the cell holds one (99.7%, <100%, 1.2e-5, 4 min 05 s), else text; what has none comes last.
    function key(text) {
      const minutes = /^(\d+) min (\d+) s$/.exec(text);
      if (minutes) return 60 * minutes[1] + Number(minutes[2]);
      const number = /^<?([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf))/.exec(text);
      return number ? Number(number[1].replace("inf", "Infinity")) : text === "-" || text === "" ? null : text;
    }

    function sort(state, column, sign) {
      if (!state.keys.has(column)) {
        state.keys.set(column, new Map(state.rows.map((row) => [row, key(row.cells[column].textContent.trim())])));
      }
      const keys = state.keys.get(column);
      state.order = [...state.rows].sort((one, other) => {
        const a = keys.get(one), b = keys.get(other);
        if (a === null || b === null) return (a === null) - (b === null);
        if (typeof a === "number" && typeof b === "number") return sign * (a - b);
        return sign * (String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0);
      });
    }

    function match(state) {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const wanted = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
      if (words.length && !state.text) {
        state.text = new Map(state.rows.map((row) => [row, row.textContent.toLowerCase()]));
      }
      state.matching = state.order.filter((row) => wanted.has(row.dataset.s)
        && words.every((word) => word.startsWith("-") && word.length > 1
          ? !state.text.get(row).includes(word.slice(1)) : state.text.get(row).includes(word)));
      draw(state);
    }

    function draw(state) {
      state.body.replaceChildren(...state.matching.slice(0, state.shown));
      state.tell();
    }

    function again() { tables.forEach((state) => { state.shown = STEP; match(state); }); }

    // A link to a case that is not shown: show it.
    function follow() {
      const name = decodeURIComponent(location.hash.slice(1));
      const there = document.getElementById(name);
      if (there) there.querySelectorAll(":scope > details").forEach((item) => { item.open = true; });
      if (!name || there) return;
      for (const state of tables) {
        const place = state.order.findIndex((row) => row.id === name);
        if (place < 0) continue;
        search.value = "";
        boxes.forEach((box) => { box.checked = true; });
        again();
        state.shown = Math.max(STEP, place + 1);
        draw(state);
        document.getElementById(name).scrollIntoView({ block: "center" });
      }
    }

    let waiting = 0;
    search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(again, 80); });
    boxes.forEach((box) => box.addEventListener("change", again));
    addEventListener("hashchange", follow);
    addEventListener("beforeprint", () => {
      tables.forEach((state) => { state.shown = Math.max(state.shown, PRINTED); draw(state); });
    });
    tables.forEach((state) => draw(state));
    if (filter) filter.hidden = false;
    root.classList.remove("js");
    follow();
  } finally {
    root.classList.remove("js");
  }
})();
