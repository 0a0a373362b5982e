"""Who said no decides whether a case is SKIPPED or CRASHED."""

import types

import pytest

from fa4verify.kernels import Unsupported
from fa4verify.kernels.shipped.refusals import refusals
from fa4verify.ptx.errors import MachineFault, Problem, PtxError


def raising_in(module, error):
    """Return a function of a module of that name that raises."""
    made = types.ModuleType(module)
    exec("def f(error):\n    raise error\n", vars(made))
    return lambda: made.f(error)


@pytest.mark.parametrize(
    ("module", "error", "told"),
    [
        ("flash_attn.cute.interface", AssertionError("head_dim 7 is odd"), "head_dim 7 is odd"),
        ("flash_attn.cute.flash_fwd", NotImplementedError("not on SM8x"), "not on SM8x"),
        ("flash_attn.cute.interface", AssertionError(), "FA4 refuses: "),
        (
            "cutlass.base_dsl.compiler",
            RuntimeError("cannot partition\n(112,80)"),
            "RuntimeError: cannot partition (112,80)",
        ),
        ("cutlass.cutlass_dsl.cutlass", TypeError("x"), "does not compile for sm_90a: TypeError: x"),
    ],
)
def test_a_refusal_is_told_in_its_own_words(module, error, told):
    with pytest.raises(Unsupported) as caught, refusals("sm_90a"):
        raising_in(module, error)()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("flash_attn.cute.interface", TypeError("unexpected keyword")),
        ("flash_attn.cute.interface", RuntimeError("no")),
        ("fa4verify.kernels.shipped.runtime", ValueError("ours")),
        ("torch", AssertionError("of somebody else")),
    ],
)
def test_anything_else_stays_what_it_is(module, error):
    with pytest.raises(type(error)) as caught, refusals("sm_90a"):
        raising_in(module, error)()
    assert not isinstance(caught.value, Unsupported)


def test_an_unknown_instruction_is_a_refusal_and_a_fault_is_not():
    with pytest.raises(MachineFault), refusals("sm_90a"):
        raise MachineFault("address out of bounds")
    with pytest.raises(Unsupported, match=r"PTX machine does not know .* line 7: no such width"), refusals("sm_90a"):
        raise PtxError((Problem(7, "ld.b1 %r, [%r]", "no such width"),))


def test_a_long_text_is_cut():
    with pytest.raises(Unsupported) as caught, refusals("sm_90a"):
        raising_in("flash_attn.cute.interface", ValueError("x" * 1000))()
    assert len(str(caught.value)) < 320
