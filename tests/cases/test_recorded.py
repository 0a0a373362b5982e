"""What a user recorded arrives unchanged, or one line says why not."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fa4verify.cases import SuiteError, draw
from tests.cases.build import case

SIZES = {"batch": 1, "seqlen_q": 3, "seqlen_k": 5, "heads": 2, "head_dim": 8}
SHAPES = {"q": (1, 3, 2, 8), "k": (1, 5, 2, 8), "v": (1, 5, 2, 8)}


def recording(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def captured(path, dtype="bf16", **fields):
    return draw(case("capture", dtype=dtype, sizes=SIZES, fields=fields, path=str(path))).tensors


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16")])
def test_safetensors_arrive_bit_for_bit(tmp_path, dtype, name):
    save_file(recording(dtype), tmp_path / "r.safetensors")
    found = captured(tmp_path / "r.safetensors", name)
    assert all(torch.equal(found[key], value) for key, value in recording(dtype).items())


def test_npz_is_rounded_once_to_the_dtype(tmp_path):
    tensors = recording()
    np.savez(tmp_path / "r.npz", **{name: tensor.numpy() for name, tensor in tensors.items()}, other=np.zeros(3))
    found = captured(tmp_path / "r.npz")
    assert set(found) == set("qkv")
    assert all(torch.equal(found[name], tensor.to(torch.bfloat16)) for name, tensor in tensors.items())


def test_a_recorded_sink_is_used(tmp_path):
    sink = torch.tensor([0.5, -3.0])
    save_file({**recording(), "learnable_sink": sink}, tmp_path / "r.safetensors")
    assert torch.equal(captured(tmp_path / "r.safetensors", learnable_sink=True)["learnable_sink"], sink)


def save(path, arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "none.npz", "no file"),
        (lambda folder: folder / "r.pt", "ends in .npz or .safetensors"),
        (lambda folder: save(folder / "r.npz", {"q": np.zeros(SHAPES["q"])}), "expected an array 'k' in it"),
        (
            lambda folder: save(folder / "r.npz", {name: np.zeros((1, 3, 2, 8)) for name in "qkv"}),
            r"found k of shape \(1, 3, 2, 8\) in .*expected \(1, 5, 2, 8\)",
        ),
        (lambda folder: save(folder / "r.npz", {name: np.zeros(3, int) for name in "qkv"}), "dtype int64"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, make, message):
    with pytest.raises(SuiteError, match=message) as caught:
        captured(make(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_damaged_file_is_one_line(tmp_path, suffix):
    path = tmp_path / f"r{suffix}"
    path.write_bytes(b"not an archive")
    with pytest.raises(SuiteError, match="cannot be read") as caught:
        captured(path)
    assert "\n" not in str(caught.value)
