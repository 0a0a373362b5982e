"""The distributions by name, what each needs of its case, and the types of their arguments."""

import inspect
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fa4verify.cases.distributions import (
    exponents,
    gaussian,
    gradients,
    ladders,
    magnitudes,
    marks,
    masked,
    nothing,
    recorded,
)
from fa4verify.cases.distributions import visibility as see
from fa4verify.cases.distributions.scores import TILE, Arrays
from fa4verify.cases.errors import SuiteError, one_of
from fa4verify.vocabulary import Case, Distribution, Operation

ATTENTION: tuple[Operation, ...] = ("forward", "backward", "repeat")
GRADIENTS: tuple[Operation, ...] = ("backward", "repeat")


@dataclass(frozen=True)
class Entry:
    """One distribution: its generator, the operations it feeds, and what it needs of a case."""

    generate: Callable[..., Arrays]
    operations: tuple[Operation, ...] = ATTENTION
    needs: tuple[see.Need, ...] = ()

    def parameters(self) -> dict[str, tuple[Any, Any]]:
        """Return type and default of each argument."""
        hints = typing.get_type_hints(self.generate)
        own = list(inspect.signature(self.generate).parameters.values())[2:]
        return {parameter.name: (hints[parameter.name], parameter.default) for parameter in own}

    def missing(self, case: Case) -> str | None:
        """Return what the case lacks for this distribution, or None."""
        return next((lack for need in self.needs if (lack := need(case)) is not None), None)


# Arguments that are a deviation, a probability, a distance or a size.
NOT_NEGATIVE = {"sigma", "probability", "spread", "reach", "jitter", "gap", "depth", "tail", "size", "low", "high"}
SOME_KEYS = see.needs_keys(1)
TABLE: Mapping[str, Entry] = {
    "normal": Entry(gaussian.normal),
    "fa3_outlier": Entry(gaussian.fa3_outlier),
    "scaled_normal": Entry(gaussian.scaled_normal),
    "max_staircase": Entry(ladders.max_staircase, needs=(see.needs_keys(2),)),
    "repeated_maxima": Entry(ladders.repeated_maxima, needs=(SOME_KEYS,)),
    "constant_rows": Entry(ladders.constant_rows, needs=(SOME_KEYS,)),
    "tail_mass": Entry(ladders.tail_mass, needs=(SOME_KEYS,)),
    "ones_v": Entry(marks.ones_v, needs=(SOME_KEYS,)),
    "onehot_ladder": Entry(ladders.onehot_ladder, needs=(SOME_KEYS, see.needs_every_key_visible)),
    "dominant_column": Entry(
        ladders.dominant_column,
        needs=(see.needs_keys(TILE), see.needs_every_key_visible, see.needs_head_dim(64)),
    ),
    "large_logits": Entry(magnitudes.large_logits),
    "negative_rows": Entry(magnitudes.negative_rows),
    "softcap_range": Entry(magnitudes.softcap_range, needs=(see.needs_softcap, see.needs_keys(2))),
    "fully_masked_rows": Entry(masked.fully_masked_rows, needs=(see.needs_empty_row,)),
    "first_tile_masked": Entry(masked.first_tile_masked, needs=(see.needs_masked_first_tile,)),
    "single_key_rows": Entry(masked.single_key_rows, needs=(see.needs_single_key_row,)),
    "ragged_varlen": Entry(masked.ragged_varlen, needs=(see.needs_ragged_length,)),
    "sink_tokens": Entry(gaussian.sink_tokens),
    "massive_activations": Entry(gaussian.massive_activations),
    "k_common_offset": Entry(gaussian.k_common_offset),
    "low_rank_qk": Entry(gaussian.low_rank_qk),
    "long_sequence": Entry(gaussian.long_sequence, needs=(see.needs_keys(4096),)),
    "uniform_tiny_output": Entry(gaussian.uniform_tiny_output),
    "tiny_values": Entry(gaussian.tiny_values),
    "nan_inf_poison": Entry(marks.nan_inf_poison, needs=(SOME_KEYS,)),
    "gqa_marked": Entry(marks.gqa_marked, needs=(see.needs_several_heads,)),
    "capture": Entry(recorded.capture),
    "scaled_dout": Entry(gradients.scaled_dout, GRADIENTS),
    "cancellation_bwd": Entry(gradients.cancellation_bwd, GRADIENTS),
    "grad_adversarial": Entry(gradients.grad_adversarial, GRADIENTS),
    "lse_loss": Entry(gradients.lse_loss, GRADIENTS, needs=(see.needs_lse_gradient,)),
    "dout_poison": Entry(gradients.dout_poison, GRADIENTS, needs=(see.needs_a_query,)),
    "octave": Entry(exponents.octave, operations=("exp2",)),
    "fractions": Entry(exponents.fractions, operations=("exp2",)),
    "working_range": Entry(exponents.working_range, operations=("exp2",)),
    "specials": Entry(exponents.specials, operations=("exp2",)),
    "nothing": Entry(nothing.nothing, operations=("audit",)),
}


def distributions() -> dict[str, str]:
    """Return every distribution with its one-line description."""
    return {name: (entry.generate.__doc__ or "").split("\n", 1)[0] for name, entry in TABLE.items()}


def bind(distribution: Distribution, key: str) -> dict[str, Any]:
    """Return the arguments of a distribution, defaults filled in and types checked.

    Raises
    ------
    SuiteError
        Unknown name or argument, wrong type, or an argument that has no default and is missing; `key` is the path.
    """
    if distribution.name not in TABLE:
        raise SuiteError(key, f"the unknown distribution {distribution.name!r}", one_of(distribution.name, TABLE))
    parameters = TABLE[distribution.name].parameters()
    for name in distribution.arguments:
        if name not in parameters:
            expected = one_of(name, parameters) if parameters else "no arguments"
            raise SuiteError(f"{key}.{name}", f"an argument that {distribution.name} does not have", expected)
    bound = {}
    for name, (hint, default) in parameters.items():
        value = distribution.arguments.get(name, default)
        if value is inspect.Parameter.empty:
            raise SuiteError(f"{key}.{name}", "nothing", f"{type_name(hint)} ({distribution.name} needs it)")
        bound[name] = _sensible(name, converted(value, hint, f"{key}.{name}"), f"{key}.{name}")
    return bound


def _sensible(name: str, value: Any, key: str) -> Any:
    """Return the value, or raise SuiteError for a number that is not finite, or negative where that means nothing."""
    if isinstance(value, float):
        least = 0.0 if name in NOT_NEGATIVE else -math.inf
        if not math.isfinite(value) or value < least:
            raise SuiteError(key, str(value), f"a finite number{', zero or more' if name in NOT_NEGATIVE else ''}")
    return value


def given(distribution: Distribution) -> dict[str, Any]:
    """Return the arguments that differ from their default, converted to their types."""
    parameters = TABLE[distribution.name].parameters()
    bound = bind(distribution, "distribution")
    return {name: value for name, value in bound.items() if value != parameters[name][1]}


def converted(value: Any, hint: Any, key: str) -> Any:
    """Convert a value as read from TOML to a type, or raise SuiteError."""
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        raise SuiteError(key, repr(value), type_name(hint)) from None


def type_name(hint: Any) -> str:
    """Return the name of a type as the author of a suite would say it."""
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(hint))
    names = {float: "a number", int: "an integer", str: "a string", bool: "true or false"}
    if hint in names:
        return names[hint]
    choices = [choice for choice in typing.get_args(hint) if choice not in (type(None), Ellipsis)]
    if typing.get_origin(hint) in (tuple, list):
        plural = {"an integer": "integers", "a number": "numbers", "a string": "strings"}
        return f"a list of {plural.get(type_name(choices[0]), type_name(choices[0]))}"
    return " or ".join(map(type_name, choices)) if choices else str(hint)
