"""What several rooms' tests share: another repository that only has fa4verify installed."""

import shutil
import sys
from pathlib import Path

import pytest

from fa4verify.gpus import listed

pytest_plugins = ["pytester"]

SUITE = """
name = "tiny"
about = "Small enough for a test."

[budgets.o-relative]
tensor = "o"
metric = "relative_rmse"
kind = "absolute"
limit = 0.02
provenance = "a few bf16 unit roundoffs (2^-8)"

[[cases]]
distribution = "normal"
shape = { seqlen = 64, heads = 2, heads_kv = 1, head_dim = 32, head_dim_v = 32 }
budgets = ["o-relative"]
kernel = "standard"
"""


def pytest_collection_modifyitems(items):
    """Skip what needs a GPU where there is none, with the reason."""
    if listed():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device: nvidia-smi lists none"))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in a folder with their_kernels.py; return a function that writes a suite there."""
    shutil.copy(Path(__file__).with_name("their_kernels.py"), tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "their_kernels", raising=False)

    def suite(extra="", name="tiny.toml"):
        Path(name).write_text(SUITE + extra)
        return name

    return suite
