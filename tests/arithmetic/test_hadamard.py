"""The rotation is orthogonal, exactly so on integers, and leaves q . k alone if the signs are shared."""

import numpy as np
import pytest
from scipy.linalg import hadamard as sylvester

from fa4verify.arithmetic.hadamard import hadamard, rotate, rotate_back, signs

RANDOM = np.random.Generator(np.random.Philox(12))


@pytest.mark.parametrize("width", [1, 2, 16, 64, 128, 256])
def test_equals_sylvesters_matrix_to_the_bit(width):
    x = RANDOM.integers(-1000, 1000, (7, width)).astype(np.float64)
    assert np.array_equal(hadamard(x), x @ sylvester(width).astype(np.float64))


@pytest.mark.parametrize(("width", "order"), [(96, 32), (192, 64), (80, 16)])
def test_other_widths_are_rotated_in_parts(width, order):
    matrix = np.kron(np.eye(width // order), sylvester(order))
    x = RANDOM.integers(-9, 9, (3, width)).astype(np.float64)
    assert np.array_equal(hadamard(x), x @ matrix)


@pytest.mark.parametrize("width", [16, 64, 96, 128])
def test_orthogonal_exactly_on_integers(width):
    order = width & -width
    twice = hadamard(hadamard(np.eye(width)))
    assert np.array_equal(twice, order * np.eye(width))


@pytest.mark.parametrize("width", [64, 96, 128])
def test_scores_are_unchanged_in_float64(width):
    """Two rotations round log2(n) times each: |error| <= 2 * 8 * 2^-53 * |q| |k|, and the dot product its own."""
    q, k = RANDOM.standard_normal((2, 50, width))
    q[3, 5] = 1e4
    shared = signs(width)
    got = rotate(q, shared) @ rotate(k, shared).T
    size = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(k, axis=1)
    assert np.all(np.abs(got - q @ k.T) <= (16 + width) * 2.0**-53 * size)
    other = rotate(q, shared) @ rotate(k, signs(width, seed=1)).T
    assert np.abs(other - q @ k.T).max() > 1.0, "signs that are not shared are seen"


def test_rotate_back_undoes_and_outliers_spread():
    x = np.zeros((1, 128))
    x[0, 17] = 100.0
    shared = signs(128)
    turned = rotate(x, shared)
    assert np.all(np.abs(turned) == 100 / np.sqrt(128))
    assert np.abs(rotate_back(turned, shared) - x).max() < 1e-13


def test_signs_are_fixed_by_seed_and_width():
    assert np.array_equal(signs(128), signs(128))
    assert not np.array_equal(signs(128), signs(128, seed=1))
    assert 40 < (signs(128) > 0).sum() < 88
