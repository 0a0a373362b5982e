"""What was asked for becomes a suite: the command in a record runs its case again, also one of a larger form."""

import pytest

from fa4verify.cases import load_suite
from fa4verify.plan import BadRequest, plan


@pytest.mark.parametrize("full", [False, True])
def test_an_id_is_found_in_the_form_that_has_it(full):
    case = load_suite("fa3_table", full=full).cases[-1]
    assert plan("fa3_table", select=f"id={case.id}", budgets=False).cases == (case,)


def test_nothing_is_found_in_either_form():
    for suite in ("fa3_table", "gate"):
        with pytest.raises(BadRequest, match="no case matches 'nothing_like_it'"):
            plan(suite, select="nothing_like_it", budgets=False)
