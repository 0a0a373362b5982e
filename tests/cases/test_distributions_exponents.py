"""Arguments of exp2: enumerated, exact in float32."""

import numpy as np
import pytest

from fa4verify.cases import draw
from tests.cases.build import case


def drawn(name, **arguments):
    (x,) = draw(case(name, operation="exp2", **arguments)).tensors.values()
    return x.numpy()


@pytest.mark.parametrize(("exponent", "sign"), [(0, -1), (0, 1), (6, -1), (-126, -1)])
def test_octave_is_every_float_of_the_binade(exponent, sign):
    x = drawn("octave", exponent=exponent, sign=sign)
    patterns = x.view(np.uint32)
    assert len(x) == 2**23
    assert np.array_equal(np.diff(patterns.astype(np.int64)), np.ones(2**23 - 1))
    assert abs(x[0]) == 2.0**exponent
    assert abs(x[-1]) < 2.0 ** (exponent + 1)
    assert np.all(np.sign(x[[0, -1]]) == sign)


def test_fractions_are_multiples_of_2_to_the_minus_24():
    x = drawn("fractions", stride=4).astype(np.float64) * 2.0**24
    assert np.array_equal(x, -np.arange(0, 2**24, 4))
    assert len(drawn("fractions")) == 2**24


def test_working_range_covers_all_binades_in_order():
    x = drawn("working_range", count=2**16)
    assert np.all(np.diff(x.astype(np.float64)) < 0)
    assert -126 <= x.min() < -120
    assert x.max() < 0
    _, binades = np.frexp(x)
    assert len(np.unique(binades)) == 133
    assert not np.array_equal(x, drawn("working_range", count=2**16 + 1)[: 2**16])


def test_specials_hold_every_edge_once():
    x = drawn("specials")
    finite = x[np.isfinite(x)]
    assert np.isnan(x).sum() == 1
    assert {-np.inf, np.inf} < set(x)
    assert len(np.unique(finite.view(np.uint32))) == len(finite)
    held = set(finite.view(np.uint32))
    for edge in (0.0, -0.0, -126.5, -(2.0**-149), 3.4e38, *range(-126, 128)):
        assert np.float32(edge).view(np.uint32) in held
    for edge in (-127.0, -126.0, -1.0, -(2.0**-25), 2.0**-126, 1.0, 127.0, 128.0, 129.0):
        for neighbour in np.nextafter(np.float32(edge), np.float32([-np.inf, np.inf])):
            assert neighbour.view(np.uint32) in held
