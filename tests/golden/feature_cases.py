"""FA4's features recorded on a real GPU beyond forward_cases and backward_cases: problems, inputs, and the call.

Shared by the recorder and the replay: `launch` calls FA4's own public functions on tensors that lie wherever the caller
has put them. Inputs come from NumPy Philox by seed, drawn in float64, rounded to float32, then to the 16-bit dtype.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BLOCK = 16  # tokens of one fingerprint


@dataclass(frozen=True)
class Feature:
    """One recorded problem; `options` are arguments of flash_attn_func or flash_attn_varlen_func."""

    name: str
    dtype: str = "bf16"
    head_dim: int = 128
    head_dim_v: int | None = None
    batch: int = 1
    seqlen_q: int = 200
    seqlen_k: int = 200
    heads: int = 2
    heads_kv: int = 2
    kind: str = "normal"
    seed: int = 1000
    options: dict[str, Any] = field(default_factory=dict)
    lengths_q: tuple[int, ...] = ()  # of packed sequences; seqlen_q and batch do not count then
    lengths_k: tuple[int, ...] = ()
    used_q: tuple[int, ...] = ()  # seqused_q
    used_k: tuple[int, ...] = ()
    page: int = 0  # tokens of a page
    sink: str = ""  # dtype of learnable_sink
    mods: str = ""  # of feature_mods.MODS
    interleaved: bool = False  # q, k, v are views of one tensor
    backward: bool = True
    splits: int = 0  # of flash_attn_combine, which is called instead


CAUSAL = {"causal": True}
WINDOW = {"window_size": (64, 16)}
LENGTHS = (77, 0, 130, 1, 129)


def _varlen(name: str, **fields: Any) -> Feature:
    return Feature("varlen " + name, **{"lengths_q": LENGTHS, "lengths_k": LENGTHS, **fields})


def _paged(name: str, page: int, **fields: Any) -> Feature:
    used = (5 * page + 3, 7 * page, 1)
    defaults = {"batch": 3, "seqlen_q": 1, "heads": 4, "used_k": used, "backward": False, "options": CAUSAL}
    return Feature(f"paged {page} {name}", page=page, **{**defaults, **fields})


CASES = [
    # Batches, heads, several seeds and distributions
    *(
        Feature(
            f"batch {dtype} d{head_dim} {kind}{' causal' if options else ''}",
            dtype, head_dim, batch=2, kind=kind, options=options, seed=seed,
        )
        for seed, (dtype, head_dim, kind, options) in enumerate(
            itertools.product(("bf16", "fp16"), (64, 128), ("wide", "uniform", "scaled8"), ({}, CAUSAL)), 2000
        )
    ),
    *(Feature(f"batch d{d} gqa", head_dim=d, batch=2, heads=4, seqlen_k=333, kind="outlier") for d in (96, 192, 256)),
    *(
        Feature(f"batch d{d} causal", "fp16", d, batch=2, heads_kv=1, seqlen_k=260, options=CAUSAL)
        for d in (96, 192, 256)
    ),
    Feature("192 128", "fp16", 192, 128, seqlen_q=333, heads=4),
    Feature("192 128 causal", "bf16", 192, 128, batch=2, seqlen_k=301, options=CAUSAL, kind="outlier"),
    Feature("64 128", "bf16", 64, 128),
    Feature("128 64", "bf16", 128, 64, options=CAUSAL),
    Feature("interleaved", interleaved=True, batch=2, options=CAUSAL),
    Feature("many tiles", "bf16", 64, batch=2, seqlen_q=1024, seqlen_k=1024, heads=8, heads_kv=8, options=CAUSAL),
    Feature("one key tile, any order", "bf16", 128, seqlen_k=100, options={"deterministic": False}),
    # Grouped queries
    *(
        Feature(f"gqa {dtype} d{d} {heads}/{kv} pack {pack}", dtype, d, heads=heads, heads_kv=kv, batch=2, seqlen_q=77,
                seqlen_k=301, options={"pack_gqa": pack, **options}, kind="outlier")
        for dtype, d, heads, kv, options in (
            ("bf16", 128, 4, 1, CAUSAL), ("fp16", 64, 6, 2, {}), ("bf16", 64, 6, 2, WINDOW),
            ("bf16", 192, 4, 2, CAUSAL),
        )
        for pack in (True, False)
    ),
    # Packed sequences
    _varlen("bf16 d128"),
    _varlen("bf16 d128 causal", options=CAUSAL, kind="outlier"),
    _varlen("fp16 d64", dtype="fp16", head_dim=64),
    _varlen("fp16 d64 causal", dtype="fp16", head_dim=64, options=CAUSAL, kind="wide"),
    _varlen("d96 causal", head_dim=96, options=CAUSAL),
    _varlen("d192", head_dim=192),
    _varlen("d256 causal", head_dim=256, options=CAUSAL),
    _varlen("192 128", head_dim=192, head_dim_v=128, options=CAUSAL),
    _varlen("longer keys causal", lengths_k=(130, 20, 300, 64, 129), options=CAUSAL),
    _varlen("shorter keys causal", lengths_k=(30, 20, 64, 0, 129), options=CAUSAL),
    _varlen("gqa packed", heads=4, heads_kv=1, options={"pack_gqa": True, **CAUSAL}),
    _varlen("gqa not packed", heads=4, heads_kv=1, options={"pack_gqa": False, **CAUSAL}),
    _varlen("gqa d64", dtype="fp16", head_dim=64, heads=6, options={}),
    _varlen("window", options=WINDOW),
    _varlen("softcap", options={"softcap": 15.0, **CAUSAL}),
    _varlen("sink", sink="bf16", options=CAUSAL),
    _varlen("used keys", used_k=(60, 0, 100, 1, 129), backward=False),
    _varlen("queries only", lengths_k=(), batch=5, seqlen_k=150, options=CAUSAL),
    Feature("used q and k", batch=3, used_q=(200, 1, 77), used_k=(180, 200, 5), options=CAUSAL, backward=False),
    # Pages
    *(_paged("decode", page) for page in (16, 64, 128)),
    *(_paged("decode not packed", page, options={"pack_gqa": False, **CAUSAL}) for page in (16, 128)),
    *(_paged("five queries", page, seqlen_q=5, kind="outlier") for page in (16, 128)),
    *(_paged("chunk", page, seqlen_q=130, dtype="fp16", head_dim=64) for page in (16, 128)),
    *(_paged("d192", page, head_dim=192, head_dim_v=128, options={}) for page in (16, 128)),
    *(_paged("packed queries", page, lengths_q=(1, 40, 3)) for page in (16, 128)),
    *(_paged("window", page, options=WINDOW, seqlen_q=33) for page in (16, 128)),
    # Windows, sinks, caps, and functions of the user
    Feature("window gqa", heads=4, batch=2, options=WINDOW, seqlen_k=333),
    Feature("window d64 fp16", "fp16", 64, options={"window_size": (0, 40)}, kind="wide"),
    *(
        Feature(f"sink {sink}", heads=4, sink=sink, options=options, kind="outlier")
        for sink, options in (("fp32", {}), ("bf16", CAUSAL), ("fp16", WINDOW))
    ),
    Feature("softcap gqa", heads=4, options={"softcap": 30.0, **CAUSAL}, kind="scaled8"),
    Feature("softcap d64", "fp16", 64, batch=2, options={"softcap": 5.0}),
    *(
        Feature(f"mods {mods} d{d}", head_dim=d, heads=4, seqlen_k=333, mods=mods)
        for mods in ("slope", "halved", "prefix", "stripes", "slope+prefix")
        for d in (64, 128)
    ),
    _varlen("mods slope", mods="slope"),
    _paged("mods slope", 128, mods="slope", seqlen_q=33),
    # What sm_90 refuses belongs to the record too
    Feature("splits 3", seqlen_q=64, seqlen_k=1024, options={"num_splits": 3}, backward=False),
    Feature("d264", head_dim=264, backward=False),
    # The kernel that joins splits
    *(
        Feature(f"combine {n} d{d} {dtype}", dtype, d, batch=2, seqlen_q=77, heads=4, splits=n, backward=False)
        for n, d, dtype in (
            (3, 128, "bf16"), (3, 64, "fp16"), (2, 96, "bf16"), (5, 192, "fp32"), (40, 128, "fp16"), (1, 128, "bf16"),
        )
    ),
    Feature("combine varlen", "bf16", 128, lengths_q=LENGTHS, heads=2, splits=3, backward=False),
]  # fmt: skip


def _bits(case: Feature, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(zlib.crc32(f"{case.name}/{name}/{case.seed}".encode())))


def _values(case: Feature, name: str, size: tuple[int, ...]) -> npt.NDArray[np.float32]:
    generator = _bits(case, name)
    x = generator.standard_normal(size)
    if case.kind == "outlier":
        x += 10 * generator.standard_normal(size) * (generator.random(size) < 1e-3)
    elif case.kind == "wide":
        x *= np.exp2(generator.integers(-6, 3, size=(*size[:-1], 1)))
    elif case.kind == "uniform":
        x = generator.random(size)
    elif case.kind == "scaled8" and name in "qk":
        x *= 8
    return x.astype(np.float32)


def _offsets(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def draw(case: Feature) -> dict[str, torch.Tensor]:
    """Return the tensors of a case by the names of FA4's parameters, and dout.

    Combining takes out_partial (splits, batch, seqlen, heads, head_dim) and lse_partial, of which some are -inf.
    """
    dtype, heads = DTYPES[case.dtype], case.heads
    d_v = case.head_dim_v or case.head_dim
    rows_q = (sum(case.lengths_q),) if case.lengths_q else (case.batch, case.seqlen_q)
    if case.splits:
        partial = torch.from_numpy(_values(case, "o", (case.splits, *rows_q, heads, case.head_dim)))
        lse = _values(case, "lse", (case.splits, *rows_q[:-1], heads, rows_q[-1])) * np.float32(4)
        lse[_bits(case, "empty").random(lse.shape) < 0.1] = -np.inf
        tensors = {"out_partial": partial, "lse_partial": torch.from_numpy(lse).transpose(-1, -2)}
        return tensors | ({"cu_seqlens": _offsets(case.lengths_q)} if case.lengths_q else {})
    tensors = {}
    if case.page:
        pages = [-(-used // case.page) for used in case.used_k]
        width, count = max(pages) + 1, sum(pages) + 4
        rows_k: tuple[int, ...] = (count, case.page)
        order = _bits(case, "pages").permutation(count)
        table = np.zeros((len(pages), width), np.int32)
        for row, (start, n) in enumerate(zip([0, *itertools.accumulate(pages)], pages, strict=False)):
            table[row, :n] = order[start : start + n]
        tensors["page_table"] = torch.from_numpy(table)
    else:
        rows_k = (sum(case.lengths_k),) if case.lengths_k else (case.batch, case.seqlen_k)
    sizes = {
        "q": (*rows_q, heads, case.head_dim),
        "k": (*rows_k, case.heads_kv, case.head_dim),
        "v": (*rows_k, case.heads_kv, d_v),
        "dout": (*rows_q, heads, d_v),
    }
    tensors |= {name: torch.from_numpy(_values(case, name, size)).to(dtype) for name, size in sizes.items()}
    for name, lengths in (("cu_seqlens_q", case.lengths_q), ("cu_seqlens_k", case.lengths_k)):
        if lengths:
            tensors[name] = _offsets(lengths)
    for name, used in (("seqused_q", case.used_q), ("seqused_k", case.used_k)):
        if used:
            tensors[name] = torch.tensor(used, dtype=torch.int32)
    if case.sink:
        tensors["learnable_sink"] = torch.from_numpy(_values(case, "sink", (heads,)) * 2).to(DTYPES[case.sink])
    return tensors


def launch(case: Feature, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Call FA4 on tensors of `draw` that the caller has placed; return o, lse and where asked dq, dk, dv, dsink.

    Rows that seqused leaves out are set to zero: FA4 does not write them. Whatever else it leaves alone is NaN.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # for this: torch.empty fills with NaN
    try:
        return _launch(case, tensors)
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _launch(case: Feature, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    from flash_attn.cute import interface

    t = dict(tensors)
    if case.splits:
        o, lse = interface.flash_attn_combine(**t, out_dtype=DTYPES[case.dtype])
        return {"o": o, "lse": lse}
    dout = t.pop("dout")
    if case.interleaved:
        together = torch.stack([t[name] for name in "qkv"], 2)
        t |= {name: together[:, :, i] for i, name in enumerate("qkv")}
    leaves = {name: t[name].detach() for name in ("q", "k", "v", "learnable_sink") if name in t}
    if case.backward:
        leaves = {name: x.requires_grad_() for name, x in leaves.items()}
    t |= leaves
    options = dict(case.options)
    if case.mods:
        from .feature_mods import MODS

        options |= MODS[case.mods]
    if case.lengths_q or case.lengths_k or case.used_q or case.used_k or case.page:
        options |= {"max_seqlen_q": max(case.lengths_q or (case.seqlen_q,))}
        if not case.page:
            options |= {"max_seqlen_k": max(case.lengths_k or (case.seqlen_k,))}
        call = interface.flash_attn_varlen_func
    else:
        call = interface.flash_attn_func
    o, lse = call(**t, return_lse=True, **{"deterministic": case.backward, **options})
    outputs = {"o": o.detach(), "lse": lse.detach()}
    if case.backward:
        names = {"q": "dq", "k": "dk", "v": "dv", "learnable_sink": "dsink"}
        gradients = torch.autograd.grad(o, list(leaves.values()), dout)
        outputs |= {names[name]: g for name, g in zip(leaves, gradients, strict=True)}
    for row, used in enumerate(case.used_q):
        outputs["o"][row, used:] = 0
        outputs["lse"][row, :, used:] = 0
    return outputs


def bits(x: torch.Tensor) -> npt.NDArray[np.generic]:
    """Return the bits of a 16-bit or 32-bit tensor as integers."""
    return x.detach().contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32).cpu().numpy()


def fingerprint(name: str, array: npt.NDArray[np.generic]) -> npt.NDArray[np.uint32]:
    """Return CRC-32 of the bits: of BLOCK tokens of one head, of BLOCK elements of LSE, of each element of dsink."""
    if name == "lse":
        flat = array.reshape(-1)
        pieces = [flat[i : i + BLOCK] for i in range(0, flat.size, BLOCK)]
    elif name == "dsink":
        pieces = list(array.reshape(-1, 1))
    else:
        rows = array.reshape(-1, *array.shape[-2:])
        pieces = [rows[i : i + BLOCK, h] for i in range(0, rows.shape[0], BLOCK) for h in range(rows.shape[1])]
    return np.array([zlib.crc32(np.ascontiguousarray(piece).tobytes()) for piece in pieces], np.uint32)
