"""FlashAttention's options as FA4's own interface takes them; shared by every kernel that calls it.

Contract: `forward` and `backward` return the keywords of `interface._flash_attn_fwd` and `_flash_attn_bwd`; what was
not given is left out, so that FA4's defaults are its own.
Source: flash-attn-4 4.0.0b36.
"""

from __future__ import annotations

from typing import Any

Window = tuple[int | None, int | None]


def given(**options: Any) -> dict[str, Any]:
    """Return what is not None."""
    return {name: value for name, value in options.items() if value is not None}


def forward(*, num_splits: int = 1, **options: Any) -> dict[str, Any]:
    """Return the keywords of a forward that also gives LSE."""
    pack_gqa = options.pop("pack_gqa", None)
    return {
        **_attention(options),
        "num_splits": num_splits,
        "pack_gqa": pack_gqa,
        "return_lse": True,
        **given(**options),
    }


def backward(*, deterministic: bool, dlse: Any, **options: Any) -> dict[str, Any]:
    """Return the keywords of a backward."""
    return {**_attention(options), "deterministic": deterministic, "dlse": dlse, **given(**options)}


def _attention(options: dict[str, Any]) -> dict[str, Any]:
    """Take FlashAttention's own options out of all, and return them by FA4's names."""
    left, right = options.pop("window_size")
    names = ("causal", "softcap", "learnable_sink", "softmax_scale")
    return {"window_size_left": left, "window_size_right": right, **{name: options.pop(name) for name in names}}
