"""Each rule: facts that hold it, facts that break it, and facts that are missing, which is neither."""

import pytest

from fa4verify.kernels.shipped.audit.facts import Fact, missing
from fa4verify.kernels.shipped.audit.rules import DECLARED, RULES, broken

SAFE = {
    "p_conversion": "cvt.rn.satfinite.e4m3x2.f32",
    "tau": "0",
    "offset": "8",
    "lse_offset": "8",
    "coefficients": DECLARED[3],
    "exponentials": "24 of 128",
    "columns": "128",
}


def facts(**changed):
    return {name: Fact(value) for name, value in {**SAFE, **changed}.items()}


def test_safe_facts_break_nothing():
    assert broken(facts()) == ([], [])


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"tau": "4"}, "2^12 "),  # 4.0.0b20
        ({"tau": "1"}, "2^9 "),  # 512 > 448
        ({"p_conversion": "cvt.rn.satfinite.e5m2x2.f32", "tau": "8"}, "2^16 "),
        ({"p_conversion": "cvt.rn.f16x2.f32", "tau": "8"}, "65504"),
        ({"coefficients": "3F800000 3F31F51A 3E6906A4 3D9DF09D"}, "no declared set"),
        ({"coefficients": "3F7FFFFF 3F31F519 3E6906A4 3D9DF09D"}, "p0 = 0.99999"),
        ({"exponentials": "24 of 127"}, "127 exponentials"),
        ({"exponentials": "24 of 128; 23 of 127"}, "127/128"),
        ({"lse_offset": "0"}, "LSE by 0"),
    ],
)
def test_each_hazard_is_named(changed, told):
    sentences, unknown = broken(facts(**changed))
    assert unknown == []
    assert any(told in sentence for sentence in sentences), sentences


@pytest.mark.parametrize(
    "changed",
    [
        {"tau": "8", "offset": "0", "lse_offset": "0", "p_conversion": "cvt.rn.bf16x2.f32"},
        {"tau": "0.8"},  # 2^8.8 = 446 < 448
        {"tau": "4", "offset": "4", "lse_offset": "4"},  # FA4 between 4.0.0b20 and its 8 + 0
        {"p_conversion": "cvt.rn.satfinite.e5m2x2.f32", "tau": "4"},
        {"coefficients": "none", "exponentials": "0 of 128"},
        {"coefficients": f"{DECLARED[3]}; {DECLARED[5]}"},
    ],
)
def test_what_is_safe_is_not_accused(changed):
    assert broken(facts(**changed)) == ([], [])


@pytest.mark.parametrize("name", SAFE)
def test_a_missing_fact_leaves_its_rules_open(name):
    sentences, unknown = broken({**facts(), name: missing("a test")})
    assert sentences == []
    assert 0 < len(unknown) < len(RULES)
