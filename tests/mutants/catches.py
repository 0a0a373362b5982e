"""Which cases of the gate catch which mutant: the cheapest and, where that one is lucky, the one built for it."""

from __future__ import annotations

from fa4verify.cases import load_suite

GATE = {case.id: case for case in load_suite("gate").cases}
RAGGED = "fwd-fa4_sm100-fp16-b1h2q1k63d128-ragged_varlen-s0"
EMPTY = "fwd-fa4_sm100-bf16-b1h2q300k100d64-causal-fully_masked_rows-s0"
POISON = "fwd-fa4_sm100-bf16-b1h4kv2q64k200d64-nan_inf_poison-s0"
ONES = "fwd-fa4_sm100-fp16-b1h2s512d64-ones_v-period4-s0"
STAIRS = "fwd-fa4_sm100-fp16-b1h1q256k1024d64-scale0.693147-max_staircase-delta"
DECODE = "fwd-fa4_sm100-bf16-b2h2kv1q1k300d64-causal-fa3_outlier-s0"
EXP2 = "exp2-fa4_sm100-specials-degree3-s0"
CATCHES = {
    "zeros": [RAGGED],
    "tile-dropped": ["fwd-fa4_sm100-bf16-b1h2q65k129d128-ragged_varlen-s0"],
    "causal-off-by-one": ["fwd-fa4_sm100-fp16-b1h4s256d64-causal-single_key_rows-s0"],
    "window-off-by-one": ["fwd-fa4_sm100-fp16-b1h1q300k400d64-window64_0-fa3_outlier-s0"],
    "scale-2^-7": [RAGGED],
    "p-truncated": [RAGGED, ONES],
    "o-truncated": [RAGGED],
    "row-sum-bf16": [RAGGED],
    "row-sum-of-rounded-p": ["fwd-fa4_sm100-bf16-b1h2q65k129d128-ragged_varlen-s0"],
    "rescale-forgotten": ["fwd-fa4_sm100-fp16-b1h4s256d64-causal-single_key_rows-s0"],
    "tile-max-only": [STAIRS + "m150-s0"],
    "max-floored-at-0": ["fwd-fa4_sm100-bf16-b1h2s384d64-causal-negative_rows-s0"],
    "sentinel-5e4": [EMPTY, "fwd-fa4_sm100-bf16-b1h2s333d64-causal-large_logits-s0"],
    "heads-swapped": ["fwd-fa4_sm100-bf16-b1h14kv2s200d64-gqa_marked-s0"],
    "lse-base-2": [RAGGED],
    "lse-of-true-max": [EMPTY.replace("bf16", "fp16").replace("causal", "causal-sink")],
    "tail-unmasked": [RAGGED],
    "sink-ignored": ["fwd-fa4_sm100-fp16-b1h2s384d64-causal-sink-sink_tokens-s0"],
    "softcap-linear": ["fwd-fa4_sm100-bf16-b1h1q256k512d64-softcap15-softcap_range-s0"],
    "one-row-half": [RAGGED],
    "nan-laundered": [POISON],
    "batch-broadcast": ["fwd-fa4_sm100-fp16-b3h2kv1s150d64-causal-fa3_outlier-s0"],
    "window-dropped-with-causal": ["fwd-fa4_sm100-bf16-b2h2kv1s150d64-causal-window40_inf-fa3_outlier-s0"],
    "softcap-dropped-with-mask": [
        "fwd-fa4_sm100-bf16-b2h2kv1s150d64-causal-softcap15-scaled_normal-s0",
        "fwd-fa4_sm100-fp16-b2h2kv1q170k150d64-window64_16-softcap15-scaled_normal-s0",
    ],
    "sink-dropped-with-gqa": ["fwd-fa4_sm100-bf16-b2h6kv2q60k140d64-sink-fa3_outlier-s0"],
    "zeros-at-decode": [DECODE],
    "zeros-beyond-2048": [
        "fwd-fa4_sm100-bf16-b2h2kv1q8k4200d64-causal-fa3_outlier-s0",
        "fwd-fa4_sm100-fp16-b1h2kv1q2100k60d64-fa3_outlier-s0",
    ],
    "o-biased": [
        *(f"fwd-fa4_sm100-{dtype}-b1h2s512d128-normal-s0" for dtype in ("bf16", "fp16")),
        "fwd-fa4_sm100-bf16-b1h1q300k129d128-fa3_outlier-s0",
    ],
    "degree-2": [RAGGED, EXP2],
    "p3-8-ulp": [EXP2],
    "p0-below-1": [EMPTY, EXP2],
    "emulated-everywhere": ["fwd-fa4_sm100-bf16-b1h1q256k1024d64-constant_rows-delta0.9-s0"],
    "tau-16": [STAIRS + "8-s0"],
}

NORMAL = "bwd-fa4_sm100-fp16-b1h2kv1s384d128-normal-s0"
WINDOW = "bwd-fa4_sm100-fp16-b1h2q100k300d64-window30_0-normal-s0"
KEYLESS = "bwd-fa4_sm100-bf16-b1h2q300k100d64-causal-dlse-normal-s0"
SINKS = "bwd-fa4_sm100-fp16-b1h8kv2s256d64-sink-dlse-sink_tokens-s0"
BATCHES = "bwd-fa4_sm100-fp16-b2h4s128d64-sink-sink_tokens-s0"
SAME_P = "bwd-fa4_sm100-bf16-b1h1q128k255d64-uniform_tiny_output-s0"
CAP = "bwd-fa4_sm100-fp16-b1h1q256k512d64-softcap30-softcap_range-s0"
SAME_V = "bwd-fa4_sm100-fp16-b1h2s256d64-cancellation_bwd-spread0-s0"
NEGATIVE = "bwd-fa4_sm100-bf16-b1h1s192d64-negative_rows-depth120-s0"
HUGE_KEY = "bwd-fa4_sm100-fp16-b1h2kv1s256d64-grad_adversarial-s0"
REPEAT = next(case_id for case_id in GATE if case_id.startswith("rep-fa4_sm100-fp16-b1h2q128k1024d64-runs"))
CATCHES_BACKWARD = {
    "gradients-zero": [WINDOW],
    "delta-of-bf16-products": [SAME_V],
    "delta-omitted": [WINDOW],
    "dlse-ignored": [KEYLESS],
    "ds-of-rounded-p": [SAME_P],
    "ds-in-16-bits": [SAME_P, WINDOW],
    "ds-truncated": [WINDOW],
    "p-truncated-for-dv": [WINDOW],
    "scale-twice": [WINDOW],
    "dk-unscaled": [WINDOW],
    "lse-read-in-base-2": [WINDOW],
    "dq-last-tile-lost": [WINDOW],
    "dq-tile-twice": [WINDOW],
    "dq-added-in-fp16": [NORMAL, "bwd-fa4_sm100-bf16-b1h2kv1s256d64-scaled_dout-exponentm60-s0"],
    "dk-last-queries-lost": [WINDOW],
    "dk-head-map": [SINKS],
    "group-forgets-a-head": [SINKS],
    "causal-top-left": [KEYLESS],
    "window-edge": [WINDOW],
    "empty-row-gradient": [KEYLESS],
    "tail-is-last-key": [WINDOW],
    "softcap-slope-missing": [CAP],
    "softcap-slope-of-scaled": [CAP],
    "dsink-sign": [SINKS],
    "dsink-of-last-batch": [BATCHES],
    "nan-laundered-in-gradients": ["bwd-fa4_sm100-bf16-b1h2s256d64-dout_poison-s0"],
    "order-random": [REPEAT],
}
