"""benchmarks/other_seeds.py: how often a correct kernel fails is counted over different draws."""

from benchmarks.other_seeds import drawn


def test_cases_that_differ_in_their_seed_alone_are_counted_once():
    """Suite release has three seeds of some cases: with one other seed 1052 cases are 876 problems."""
    found = drawn("release", [101, 102])
    assert {case.seed for case in found} == {101, 102}
    assert len(found) == len({case.id for case in found}) == 2 * 876
