"""Readable ids: what a case is, in words that a shell, pytest and `--select` take as they are.

Contract: two cases of a suite with equal ids are equal problems on the same kernel with the same options; only
budgets, requirements, baseline and timeout are not in the id (suite.py refuses such pairs).
"""

import hashlib
import json
import re
from pathlib import PurePath
from typing import Any

from fa4verify.cases.distributions import given
from fa4verify.vocabulary import Case

LONGEST_VALUE = 20
PREFIX = {"forward": "fwd", "exp2": "exp2", "backward": "bwd", "repeat": "rep", "audit": "audit"}


def case_id(case: Case) -> str:
    """Return the id of a case, as fwd-fa4_sm100-bf16-b1h2s1024d128-causal-fa3_outlier-s0."""
    words = [PREFIX[case.operation], case.kernel.replace("-", "_")]
    if case.operation == "audit":
        return "-".join([*words, str(case.options.get("configuration", ""))])
    if case.operation != "exp2":
        words += [case.dtype, _shape(case), *_features(case)]
    words.append(case.distribution.name)
    words += [f"{name}{_value(value)}" for name, value in given(case.distribution).items()]
    words += [f"{name}{_value(value)}" for name, value in sorted(case.options.items())]
    return "-".join([*words, f"s{case.seed}"])


def _shape(case: Case) -> str:
    shape = case.shape
    heads = f"h{shape.heads}" if shape.heads == shape.heads_kv else f"h{shape.heads}kv{shape.heads_kv}"
    length = f"s{shape.seqlen_k}" if shape.seqlen_q == shape.seqlen_k else f"q{shape.seqlen_q}k{shape.seqlen_k}"
    width = f"d{shape.head_dim}" if shape.head_dim == shape.head_dim_v else f"d{shape.head_dim}v{shape.head_dim_v}"
    return f"b{shape.batch}{heads}{length}{width}"


def _features(case: Case) -> list[str]:
    words = ["causal"] if case.causal else []
    if case.window_size != (None, None):
        words.append("window" + "_".join("inf" if edge is None else _value(edge) for edge in case.window_size))
    if case.softcap:
        words.append(f"softcap{_value(case.softcap)}")
    if case.learnable_sink:
        words.append("sink")
    if case.softmax_scale is not None:
        words.append(f"scale{_value(case.softmax_scale)}")
    how = case.quantisation
    if how.scales != "none":
        words.append(how.scales + "2" * how.power_of_two)
    words += ["incoherent"] * how.incoherent + ["draws"] * (case.truth == "draws")
    if case.operation in ("backward", "repeat"):
        words += ["dlse"] if case.lse_gradient else []
        words += [] if case.deterministic else ["anyorder"]
    if case.operation == "repeat":
        words.append(f"runs{case.runs}")
        words += ["loaded"] if case.loaded else []
    return words


def _value(value: Any) -> str:
    """Return a value without characters that a shell minds; a long one is cut, or named by its hash."""
    if isinstance(value, str) and PurePath(value).suffix in (".npz", ".safetensors"):
        return f"{_plain(PurePath(value).stem)[:LONGEST_VALUE]}.{_hash(value)}"
    if isinstance(value, float):
        return f"{value:.6g}".replace("-", "m").replace("+", "")
    if isinstance(value, list | tuple):
        text = "_".join(map(_value, value))
    elif isinstance(value, dict):
        text = "_".join(f"{name}{_value(item)}" for name, item in sorted(value.items()))
    else:
        text = _plain(str(value))
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 7].rstrip('_')}.{_hash(value)}"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", text.replace("-", "m"))


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]
