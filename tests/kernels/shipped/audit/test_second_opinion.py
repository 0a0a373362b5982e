"""Facts against opinions that share nothing with the extractor: FA4 run with NaN, the emulation, the source."""

import numpy as np
import torch

import fa4verify
from fa4verify.kernels.emulated import tuning_sm100
from fa4verify.kernels.shipped import execution
from fa4verify.kernels.shipped.audit import contract
from fa4verify.kernels.shipped.audit.extract import facts_of
from fa4verify.kernels.shipped.audit.facts import ranges
from tests.kernels.shipped.audit.texts import BLACKWELL, BY_ID, clean, needs_fa4

KEYS = 128


@needs_fa4
def test_emulated_columns_are_those_that_swallow_a_nan():
    """The clamp turns a NaN score into a weight of 0: of 128 batches, each with another key NaN, those stay finite."""
    kernel = fa4verify.kernel("fa4@sm_100a")
    generator = torch.Generator().manual_seed(6)
    q, k, v = (torch.randn(KEYS, KEYS, 1, 64, generator=generator).to(torch.bfloat16) for _ in range(3))
    q = q[:, :1].contiguous()
    k[torch.arange(KEYS), torch.arange(KEYS)] = torch.nan
    seen = []
    with execution.using(instead=lambda ptx, _: seen.append(ptx)):
        kernel.forward(q, k, v)
    fact = facts_of(seen[0])["forward"]["emulated_columns"].value
    finite = kernel.forward(q, k, v).o.float().isfinite().all(dim=-1).flatten()
    assert 0 < finite.sum() < KEYS
    assert fact == ranges(np.flatnonzero(finite.numpy()).tolist())


def test_the_contract_agrees_with_the_emulations_tuning():
    """Every 16-bit row of sm_100a; tuning_sm100.py was written from FA4's source, without its PTX."""
    agreed = contract.load()
    compared = 0
    for identity in agreed.configurations:
        one = BY_ID[identity]
        if (
            one.direction != "fwd"
            or one.arch != "sm_100a"
            or one.dtype not in ("bf16", "fp16")
            or one.layout == "varlen"
        ):
            continue
        heads, heads_kv = (8, 2) if one.layout == "gqa" else (4, 4)
        chosen = tuning_sm100.configure(
            head_dim=one.head_dim,
            head_dim_v=one.head_dim_v,
            seqlen_q=1024,
            batch=1,
            heads=heads,
            heads_kv=heads_kv,
            causal=one.mask == "causal",
            local=one.mask == "window",
        )
        columns = tuning_sm100.emulated_columns(chosen.freq, 4, chosen.start)
        assert agreed.facts(identity)["forward.emulated_columns"] == ranges(columns), identity
        compared += 1
    assert compared >= 4


@needs_fa4
def test_the_order_of_the_row_sum_is_the_emulations():
    """Eight partial sums, column i to partial i mod 8, pairs merged as utils.fadd_reduce does (docs/shipped.md)."""
    import hashlib

    def add(a, b):
        return f"(add.rn.f32x2 {a} {b})"

    def lane(which):
        sums = []
        for pair in range(4):
            columns = [2 * pair + which + 8 * step for step in range(KEYS // 8)]
            total = f"#{columns[0]}"
            for column in columns[1:]:
                total = add(total, f"#{column}")
            sums.append(total)
        return add(add(sums[0], sums[1]), add(sums[2], sums[3]))

    expression = f"(add.f32 {lane(0)} {lane(1)})"
    digest = hashlib.sha256(expression.encode()).hexdigest()[:8]
    found = clean(BLACKWELL).kernels["forward"]["row_sum_order"].value
    assert digest in found.split("; ")


@needs_fa4
def test_declared_coefficients_are_the_packages():
    from flash_attn.cute.utils import POLY_EX2

    from fa4verify.kernels.shipped.audit.rules import DECLARED

    for degree, text in DECLARED.items():
        bits = np.array(POLY_EX2[degree], np.float32).view(np.uint32)
        assert " ".join(f"{one:08X}" for one in bits) == text
