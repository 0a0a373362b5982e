"""The kernel objects: layouts agree with each other, refusals are FA4's own, no order of threads changes a bit."""

import pytest
import torch

import fa4verify
from fa4verify import kernels
from fa4verify.kernels.checks import same_bits
from fa4verify.kernels.shipped.execution import using

pytestmark = pytest.mark.skipif(
    kernels.availability("fa4@sm_90a") is not None, reason=str(kernels.availability("fa4@sm_90a"))
)
LENGTHS = (77, 130, 1)


@pytest.fixture(scope="module")
def hopper():
    return fa4verify.kernel("fa4@sm_90a")


def tensors(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).to(torch.bfloat16) for size in sizes]


def test_packed_sequences_have_the_bits_of_single_ones(hopper):
    q, k, v = tensors(*[(sum(LENGTHS), 2, 64)] * 3)
    offsets = torch.tensor([0, 77, 207, 208], dtype=torch.int32)
    packed = hopper.forward(
        q, k, v, causal=True, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=130, max_seqlen_k=130
    )
    for start, length in zip(offsets.tolist(), LENGTHS, strict=False):
        part = slice(start, start + length)
        alone = hopper.forward(q[None, part], k[None, part], v[None, part], causal=True)
        assert same_bits(packed.o[None, part], alone.o)
        assert same_bits(packed.lse[None, :, part].contiguous(), alone.lse)


def test_pages_in_any_order_have_the_bits_of_one_cache(hopper):
    """Pages of a KV tile's length; the pages that no table names are NaN."""
    (q,), (k, v) = tensors((1, 5, 4, 64)), tensors((1, 384, 2, 64), (1, 384, 2, 64), seed=1)
    pools = [torch.full((7, 128, 2, 64), torch.nan).to(torch.bfloat16) for _ in range(2)]
    order = [4, 0, 6]
    for pool, cache in zip(pools, (k, v), strict=True):
        pool[order] = cache.view(3, 128, 2, 64)
    used = torch.tensor([333], dtype=torch.int32)
    table = torch.tensor([order], dtype=torch.int32)
    paged = hopper.forward(q, *pools, page_table=table, seqused_k=used, causal=True)
    whole = hopper.forward(q, k[:, :333].contiguous(), v[:, :333].contiguous(), causal=True)
    assert same_bits(paged.o, whole.o)
    table[0, 1] = 2
    assert bool(hopper.forward(q, *pools, page_table=table, seqused_k=used, causal=True).o.isnan().any())


@pytest.mark.parametrize(("schedule", "seed"), [("reversed", 0), ("random", 1), ("random", 2), ("late", 3)])
def test_no_order_of_threads_changes_a_bit(hopper, schedule, seed):
    q, k, v = tensors(*[(1, 150, 2, 64)] * 3)
    fixed = hopper.forward(q, k, v, causal=True)
    with using() as execution:
        other = hopper.forward(q, k, v, causal=True, schedule=schedule, schedule_seed=seed)
    assert same_bits(fixed.o, other.o)
    assert same_bits(fixed.lse, other.lse)
    assert len(execution.launches) == 1


def test_an_edited_kernel_is_run_inside_using_and_only_there(hopper):
    q, k, v = tensors(*[(1, 64, 1, 64)] * 3)
    before = hopper.forward(q, k, v, causal=True)

    def halve_ln2(_entry, ptx):
        assert ptx.count("0f3F317218") == 2, "ln 2, in two places"
        return ptx.replace("0f3F317218", "0f3EB17218")

    with using(edit=halve_ln2) as execution:
        edited = hopper.forward(q, k, v, causal=True)
    assert same_bits(edited.o, before.o)
    assert torch.allclose(edited.lse * 2, before.lse, rtol=1e-6)
    assert len(execution.launches) == 1
    assert same_bits(hopper.forward(q, k, v, causal=True).lse, before.lse)


def test_rows_that_fa4_leaves_unwritten_are_nan(hopper):
    q, k, v = tensors(*[(2, 70, 1, 64)] * 3)
    used = torch.tensor([70, 3], dtype=torch.int32)
    out = hopper.forward(q, k, v, seqused_q=used, seqused_k=used, causal=True)
    assert bool(out.o[1, 3:].isnan().all())
    assert not bool(out.o[0].isnan().any() | out.o[1, :3].isnan().any())


@pytest.mark.parametrize(
    ("name", "sizes", "options", "told"),
    [
        ("fa4@sm_90a", [(1, 64, 1, 64)] * 3, {"num_splits": 3}, "SplitKV not supported on SM 9.0"),
        ("fa4@sm_90a", [(1, 64, 1, 264)] * 3, {}, r"\(264, 264\) is not supported on SM90"),
        ("fa4@sm_90a", [(1, 64, 3, 64), (1, 64, 2, 64), (1, 64, 2, 64)], {}, "divisible by num_head_kv"),
        ("fa4@sm_100a", [(1, 64, 1, 136)] * 3, {}, r"\(136, 136\) is not supported on SM100"),
    ],
)
def test_what_fa4_refuses_is_refused_in_its_words(name, sizes, options, told):
    with pytest.raises(kernels.Unsupported, match=told):
        fa4verify.kernel(name).forward(*tensors(*sizes), **options)


def test_ampere_has_no_backward():
    q = torch.zeros(1, 64, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(kernels.Unsupported, match=r"Unsupported compute capability. Supported: 9.x"):
        fa4verify.kernel("fa4@sm_80").backward(q, q, q, q, q, torch.zeros(1, 1, 64))


def test_an_unknown_schedule_is_refused(hopper):
    with pytest.raises(ValueError, match="expected fixed, reversed, random or late"):
        hopper.forward(*tensors(*[(1, 64, 1, 64)] * 3), schedule="fast")
