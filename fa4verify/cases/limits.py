"""Budgets and studies as TOML states them.

Contract: a budget names a tensor and a metric that exist and says where its number comes from; whether the limit means
anything is tried on trivial outputs elsewhere (`fa4verify.flow.admit`).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

import msgspec

from fa4verify.cases.distributions.table import converted
from fa4verify.cases.errors import SuiteError, one_of
from fa4verify.vocabulary import ACTIVITY, EXP2_METRICS, METRICS, REPEAT_METRICS, TENSORS, Budget, Case, Study


def metrics_of(tensor: str) -> tuple[str, ...]:
    """Return the metrics that exist for a tensor."""
    if tensor == "y":
        return METRICS + EXP2_METRICS
    return METRICS + REPEAT_METRICS if tensor in TENSORS["repeat"] else METRICS


def known_keys(table: Any, known: Iterable[str], key: str) -> Mapping[str, Any]:
    """Return the table, or raise SuiteError if it is none or holds a key that is not known."""
    if not isinstance(table, dict):
        raise SuiteError(key, repr(table), "a table")
    for name in table:
        if name not in known:
            raise SuiteError(f"{key}.{name}" if key else name, "an unknown key", one_of(name, known))
    return table


def _fields(table: Any, struct: type[msgspec.Struct], key: str, leave_out: str = "") -> dict[str, Any]:
    """Convert a table to the fields of a struct, with the path of the key in every error."""
    info = {field.name: field for field in msgspec.structs.fields(struct) if field.name != leave_out}
    table, hints = known_keys(table, info, key), get_type_hints(struct)
    for name, field in info.items():
        if field.required and name not in table:
            raise SuiteError(f"{key}.{name}", "nothing", "it: it is required")
    return {name: converted(value, hints[name], f"{key}.{name}") for name, value in table.items()}


def read_budget(name: str, table: Any) -> Budget:
    """Return the budget of a table `[budgets.NAME]`."""
    key = f"budgets.{name}"
    fields = _fields(table, Budget, key, leave_out="name")
    tensors = [tensor for group in TENSORS.values() for tensor in group]
    if fields["tensor"] not in tensors:
        raise SuiteError(f"{key}.tensor", repr(fields["tensor"]), one_of(fields["tensor"], tensors))
    known = metrics_of(fields["tensor"])
    if fields["metric"] not in known:
        raise SuiteError(f"{key}.metric", repr(fields["metric"]), one_of(fields["metric"], known))
    if not math.isfinite(fields["limit"]) or fields["limit"] < 0:
        raise SuiteError(f"{key}.limit", str(fields["limit"]), "a finite number, zero or more")
    if "value" in fields and fields["kind"] != "equals":
        raise SuiteError(f"{key}.value", f"a value in a budget of kind {fields['kind']!r}", "kind = 'equals'")
    if not fields["provenance"].strip():
        raise SuiteError(f"{key}.provenance", "an empty text", "where the number comes from")
    return Budget(name=name, **fields)


def read_study(table: Any, cases: Iterable[Case]) -> Study:
    """Return the study of a table `[study]`; its paths must lead somewhere in at least one of the cases."""
    fields = _fields(table, Study, "study")
    heads = [field.name for field in msgspec.structs.fields(Case)]
    paths = [("rows", fields["rows"])]
    paths += [(f"{name}[{i}]", path) for name in ("columns", "tables") for i, path in enumerate(fields.get(name, ()))]
    for name, path in paths:
        if path.split(".")[0] not in heads:
            raise SuiteError(f"study.{name}", repr(path), one_of(path.split(".")[0], heads))
        if not any(_leads_somewhere(case, path) for case in cases):
            raise SuiteError(f"study.{name}", repr(path), "a path that at least one case has")
    for i, path in enumerate(fields["values"]):
        owner, _, measure = path.partition(".")
        owners = [*(tensor for group in TENSORS.values() for tensor in group), "activity"]
        if owner not in owners:
            raise SuiteError(f"study.values[{i}]", repr(path), f"it to start with {' or '.join(owners)}")
        known = ACTIVITY if owner == "activity" else metrics_of(owner)
        for part in [measure] if owner == "activity" else measure.split("/", 1):
            if part not in known:
                raise SuiteError(f"study.values[{i}]", repr(path), one_of(part, known))
    return Study(**fields)


def _leads_somewhere(case: Case, path: str) -> bool:
    value: Any = case
    for name in path.split("."):
        if not (name in value if isinstance(value, dict) else name in getattr(value, "__struct_fields__", ())):
            return False
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return True
