"""FA4's own kernels and our emulations give the same bits, on every case of the gate: two unlike implementations.

Inputs of every distribution: outliers, staircases, masks that leave nothing, NaN and infinities, sinks, softcap,
groups, ragged lengths, all head dims; forwards and deterministic backwards. Two cases of each kernel run always, all
with `-m exhaustive`.
"""

from __future__ import annotations

import msgspec
import pytest
import torch

from fa4verify import cases, kernels
from fa4verify.cases.distributions import TABLE
from fa4verify.kernels.call import run

pytestmark = pytest.mark.skipif(
    kernels.availability("fa4@sm_90a") is not None, reason=str(kernels.availability("fa4@sm_90a"))
)
SHIPPED = {"fa4-sm90": "fa4@sm_90a", "fa4-sm100": "fa4@sm_100a"}
OPTIONS = {"num_sms": "sm_count", "pack_gqa": "pack_gqa", "disable_2cta": "disable_2cta"}
ALWAYS = ("b1h4kv2q64k200d64-nan_inf_poison-s0", "b2h2kv1s150d64-causal-softcap15-scaled_normal-s0")


def _comparable(case):
    """Whether the case fixes the order of its adds and has no option that FA4 has not."""
    promised = case.deterministic or case.operation == "forward"
    return (
        case.kernel in SHIPPED
        and case.operation in ("forward", "backward")
        and promised
        and set(case.options) <= set(OPTIONS)
    )


def _parameters():
    for case in cases.load_suite("gate").cases:
        if _comparable(case):
            always = any(case.id.endswith(name) for name in ALWAYS) and case.dtype == "bf16"
            yield pytest.param(case, marks=() if always else pytest.mark.exhaustive, id=case.id)


def differing(case):
    """Return for each tensor how many elements have other bits; NaN equals NaN."""
    inputs = cases.draw(case)
    options = {OPTIONS[name]: value for name, value in case.options.items()}
    shipped = run(msgspec.structs.replace(case, kernel=SHIPPED[case.kernel], options=options), inputs)
    emulated = run(case, inputs)
    counts = {}
    for name in ("o", "lse", "dq", "dk", "dv", "dsink"):
        one, other = getattr(shipped, name), getattr(emulated, name)
        assert (one is None) == (other is None), name
        if one is not None:
            kind = torch.int16 if one.element_size() == 2 else torch.int32
            different = one.contiguous().view(kind) != other.contiguous().view(kind)
            counts[name] = int((different & ~(one.isnan() & other.isnan())).sum())
    return counts


@pytest.mark.parametrize("case", [*_parameters()])
def test_the_same_bits(case):
    assert not any(differing(case).values())


def test_enough_cases_of_every_kind_are_compared():
    compared = [parameter.values[0] for parameter in _parameters()]
    for kernel in SHIPPED:
        mine = [case for case in compared if case.kernel == kernel]
        assert sum(case.operation == "forward" for case in mine) >= 50
        assert sum(case.operation == "backward" for case in mine) >= 50
        forward = {case.distribution.name for case in mine}
        needed = {name for name, entry in TABLE.items() if "forward" in entry.operations}
        assert needed - forward <= {"capture", "long_sequence"}, "long_sequence needs 4096 keys; capture a user's file"


def test_another_emulation_is_seen():
    """With another polynomial, none, or a rescale of every tile, bits differ: equality is not for want of looking."""
    case = next(p.values[0] for p in _parameters() if p.id.endswith(ALWAYS[0]) and "sm100" in p.id)
    normal = msgspec.structs.replace(case.distribution, name="normal", arguments={})
    case = msgspec.structs.replace(case, distribution=normal)
    inputs = cases.draw(case)
    shipped = run(msgspec.structs.replace(case, kernel="fa4@sm_100a"), inputs)
    for options in ({"degree": 4}, {"emulated_columns": "none"}, {"rescale_threshold": 0.0}):
        other = run(msgspec.structs.replace(case, options=options), inputs)
        assert not torch.equal(shipped.lse, other.lse) or not torch.equal(shipped.o, other.o), options
