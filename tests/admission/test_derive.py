"""Tables read off answers: the shipped rows from the floor's own, any row from its sums, none from noise."""

import itertools
import json
from importlib.resources import files

import numpy as np
import pytest

from fa4verify.admission import derive
from fa4verify.arithmetic import exhaust

SHIPPED = json.loads(files("fa4verify.arithmetic").joinpath("mufu_tables.json").read_text())


@pytest.mark.parametrize("name", ["ex2", "rcp", "lg2"])
def test_the_shipped_rows_come_back(name):
    segments = getattr(derive, f"_{name}")(exhaust.model)
    for number, segment in itertools.islice(enumerate(segments), 0, None, 31):
        assert derive._row(segment) == (SHIPPED[name][number], 0)


def test_the_shipped_rows_of_tanh_come_back():
    segments = derive._tanh(exhaust.model, SHIPPED["tanh_segment_bits"][:3])
    for number, segment in itertools.islice(enumerate(segments), 0, None, 3):
        assert derive._row(segment) == (SHIPPED["tanh"][number], 0)


def test_any_row_comes_back():
    generator = np.random.Generator(np.random.Philox(7))
    x = np.arange(1 << 14, dtype=np.int64) << 3
    basis = np.stack([np.full_like(x, 1 << 13), x, derive.squarer(x)], axis=1)
    for _ in range(10):
        row = [int(generator.integers(2**25, 2**26)), int(generator.integers(-(2**15), 2**15)),
               int(generator.integers(0, 2**10))]  # fmt: skip
        cut = (basis @ np.array(row) + derive.EX2_ROUNDING) >> 15
        assert derive._row(derive.Segment(basis, derive.EX2_ROUNDING, cut << 15, (cut + 1) << 15)) == (row, 0)


def test_what_no_row_explains_is_counted():
    x = np.arange(1 << 12, dtype=np.int64) << 5
    basis = np.stack([np.full_like(x, 1 << 13), x, derive.squarer(x)], axis=1)
    cut = ((basis @ np.array([2**25, 2**14, 512]) + derive.EX2_ROUNDING) >> 15) + (x >> 12) % 3
    _, unexplained = derive._row(derive.Segment(basis, derive.EX2_ROUNDING, cut << 15, (cut + 1) << 15))
    assert unexplained > 1000


def test_the_squarer_is_the_floors():
    from fa4verify.arithmetic.mufu import squarer

    x = np.arange(0, 1 << 17, 61, dtype=np.int64)
    assert [squarer(int(value)) for value in x] == derive.squarer(x).tolist()
