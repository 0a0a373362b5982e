"""A case is refused that does not look at its result: a forward without a limit on O, a backward without a gradient."""

import pytest

from fa4verify.cases import SuiteError, load_suite, suites

NEEDED = {"forward": {"o"}, "backward": {"dq", "dk", "dv"}}


def _suite(tmp_path, operation, *tensors):
    budgets = [
        f'[budgets.{name}]\ntensor = "{name}"\nmetric = "rmse"\nkind = "absolute"\nlimit = 1\nprovenance = "a test"\n'
        for name in tensors
    ]
    case = f'[[cases]]\noperation = "{operation}"\nkernel = "k"\ndistribution = "normal"\nbudgets = {list(tensors)}\n'
    path = tmp_path / "some.toml"
    path.write_text('name = "some"\nabout = "x"\n' + "".join(budgets) + case)
    return path


@pytest.mark.parametrize(
    ("operation", "tensors", "found"),
    [
        ("forward", ["lse"], "budgets on lse only, expected a budget on o"),
        ("backward", ["delta"], "budgets on delta only, expected a budget on dq or dk or dv"),
        ("backward", ["delta", "dsink"], "budgets on delta and dsink only, expected a budget on dq or dk or dv"),
    ],
)
def test_a_by_product_is_no_judgement(tmp_path, operation, tensors, found):
    with pytest.raises(SuiteError) as error:
        load_suite(_suite(tmp_path, operation, *tensors))
    assert str(error.value) == f"some.toml: cases[0].budgets: found {found}"


@pytest.mark.parametrize(
    ("operation", "tensors"),
    [("forward", ["o"]), ("forward", ["lse", "o"]), ("backward", ["dk"]), ("backward", ["delta", "dv"])],
)
def test_a_result_is_enough(tmp_path, operation, tensors):
    assert len(load_suite(_suite(tmp_path, operation, *tensors)).cases[0].budgets) == len(tensors)


@pytest.mark.parametrize("name", suites())
def test_shipped_cases_look_at_their_result(name):
    for case in load_suite(name).cases:
        needed = NEEDED.get(case.operation)
        assert needed is None or needed & {budget.tensor for budget in case.budgets}, case.id
