"""Whatever the scope replaces is put back, and a name that FA4 no longer has stops it."""

import os

import pytest

flash_attn = pytest.importorskip("flash_attn.cute.interface", exc_type=ImportError)

import cutlass.utils  # noqa: E402 - found only where the DSL is installed
import torch  # noqa: E402
from cutlass.cutlass_dsl import CuTeDSL  # noqa: E402
from flash_attn.cute import cute_dsl_utils, tile_scheduler, utils  # noqa: E402

from fa4verify.kernels.shipped import host  # noqa: E402
from fa4verify.kernels.shipped.target import TARGETS  # noqa: E402

OWNERS = (flash_attn, cute_dsl_utils, tile_scheduler, utils, cutlass.utils, torch, torch.Tensor, torch.cuda)


def everything():
    """Return every attribute of everybody whom the scope could touch, and the environment."""
    dsl = CuTeDSL._get_dsl()
    compiling = [function for function in vars(flash_attn).values() if hasattr(function, "compile_cache")]
    owners = (*OWNERS, dsl, dsl.envar, *compiling)
    return [dict(vars(owner)) for owner in owners], dict(os.environ)


def same(before, after):
    names = all(a.keys() == b.keys() for a, b in zip(before[0], after[0], strict=True))
    values = all(
        a[name] is b[name] or a[name] == b[name] for a, b in zip(before[0], after[0], strict=True) for name in a
    )
    return names and values and before[1] == after[1]


def no_kernels(name):
    return {}


@pytest.mark.parametrize("raising", [False, True])
def test_everything_is_as_before(raising):
    before = everything()
    caches = []
    try:
        with host.interface(TARGETS["sm_100a"], lambda name: caches.append(name) or {}) as fa4:
            inside = everything()
            assert fa4._get_device_arch() == 100
            assert fa4.get_num_sms_for_selection(None, 100) == 148
            assert fa4.torch.empty(1).is_cuda
            assert CuTeDSL._get_dsl().envar.arch == "sm_100a"
            assert fa4._flash_attn_fwd.compile_cache == {}
            if raising:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert raising
    assert not same(before, inside), "the check sees what is replaced"
    assert same(before, everything())
    assert {"_flash_attn_fwd", "_flash_attn_bwd", "_bwd_preprocess"} <= set(caches)
    assert not torch.empty(1).is_cuda


def test_scopes_nest_and_unwind():
    before = everything()
    with host.interface(TARGETS["sm_90a"], no_kernels) as outer:
        with host.interface(TARGETS["sm_100a"], no_kernels) as inner:
            assert inner._get_device_arch() == 100
        assert outer._get_device_arch() == 90
        assert CuTeDSL._get_dsl().envar.arch == "sm_90a"
    assert same(before, everything())


def test_a_name_that_fa4_lost_stops_the_scope_and_leaves_nothing_behind(monkeypatch):
    monkeypatch.delattr(flash_attn, "get_num_sms_for_selection")
    before = everything()
    with (
        pytest.raises(host.InterfaceChanged, match="interface has no get_num_sms_for_selection"),
        host.interface(TARGETS["sm_90a"], no_kernels),
    ):
        pytest.fail("never entered")
    assert same(before, everything())
