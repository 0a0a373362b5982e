"""Inputs that a user recorded.

Contract: a file with q, k and v, shaped (batch, seqlen, heads, head_dim) like the case; values are rounded once to the
case's dtype, so a recording in that dtype arrives unchanged.
Fails with one line that names the file, what is in it and what was expected.
"""

from pathlib import Path

import numpy as np

from fa4verify.cases.distributions.scores import Array, Arrays, sizes
from fa4verify.cases.errors import SuiteError
from fa4verify.cases.seeding import Stream
from fa4verify.vocabulary import Case

KEY = "distribution.path"


def capture(case: Case, _stream: Stream, path: str) -> Arrays:
    """Q, K and V from a user's .npz or .safetensors file ("my model breaks on these").

    Detects what real activations do. numpy has no bf16, so record bf16 with safetensors (or as float32 in .npz, which
    loses nothing).

    Parameters
    ----------
    path
        The file, relative to the current directory, with arrays q, k, v of shape (batch, seqlen, heads, head_dim) and,
        if the case has a learnable sink, learnable_sink (heads,). A backward takes dout, shaped like o, and dlse
        (batch, heads, seqlen_q) from it too, where they are there.

    Check: what comes out is what was saved, bit for bit, where the dtype is the case's.
    """
    expected = dict(sizes(case))
    shapes: dict[str, tuple[int, ...]] = {**expected}
    if case.learnable_sink:
        shapes["learnable_sink"] = (case.shape.heads,)
    arrays = _read(Path(path))
    if case.operation != "forward":
        batch, seqlen_q, heads, _ = expected["q"]
        upstream = {"dout": (batch, seqlen_q, heads, case.shape.head_dim_v), "dlse": (batch, heads, seqlen_q)}
        shapes |= {name: shape for name, shape in upstream.items() if name in arrays}
    for name, shape in shapes.items():
        if name not in arrays:
            raise SuiteError(KEY, f"{path} with {', '.join(sorted(arrays)) or 'nothing'}", f"an array {name!r} in it")
        if arrays[name].shape != shape:
            raise SuiteError(KEY, f"{name} of shape {arrays[name].shape} in {path}", f"{shape}, the shape of the case")
    return {name: arrays[name] for name in shapes}


def _read(path: Path) -> dict[str, Array]:
    """Return every array of the file in float64."""
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors}
    if path.suffix not in readers:
        raise SuiteError(KEY, repr(str(path)), "a file that ends in .npz or .safetensors")
    if not path.is_file():
        raise SuiteError(KEY, f"no file {str(path)!r}", "a recording of q, k and v")
    try:
        return readers[path.suffix](path)
    except SuiteError:
        raise
    except Exception as error:  # both readers raise many types for a damaged file
        line = " ".join(str(error).split())
        raise SuiteError(KEY, f"{path}, which cannot be read ({line})", f"a sound {path.suffix} file") from error


def _read_npz(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise SuiteError(KEY, f"{name} of dtype {array.dtype} in {path}", "float16, float32 or float64")
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def _read_safetensors(path: Path) -> dict[str, Array]:
    import torch  # costs a second, and only this reader knows bf16
    from safetensors.torch import load_file

    found = {}
    for name, tensor in load_file(path).items():
        if not tensor.dtype.is_floating_point:
            raise SuiteError(KEY, f"{name} of dtype {tensor.dtype} in {path}", "a floating-point dtype")
        found[name] = tensor.to(torch.float64).numpy()
    return found
