"""A [[cases]] block becomes Cases: shorthands, axes, checks.

Contract: a block holds the fields of a Case, `budgets` as names, and `[cases.axes]` whose lists are multiplied out.
Settings are kept flat ("shape.head_dim") with the path they were read from, so that every error names the place in the
file, inside an axis too. docs/suites.md documents the format.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_type_hints

import msgspec

from fa4verify.cases.distributions import TABLE, bind
from fa4verify.cases.distributions.table import converted
from fa4verify.cases.errors import SuiteError, one_of
from fa4verify.cases.naming import case_id
from fa4verify.vocabulary import ACTIVITY, EIGHT_BITS, OF_BITS, TENSORS, Budget, Case, Distribution, Quantisation, Shape

# A flat setting: its value and where it was read.
Settings = dict[str, tuple[Any, str]]

TABLES = ("shape", "distribution", "options", "quantisation")
# What the author of a suite may write; the rest of a Case is ours.
FIELDS = tuple(field.name for field in msgspec.structs.fields(Case) if field.name not in ("id", "suite", "substituted"))
QUANTISATION_FIELDS = tuple(field.name for field in msgspec.structs.fields(Quantisation))
SHAPE_FIELDS = ("seqlen", *(field.name for field in msgspec.structs.fields(Shape)))
# Fields that mean something to some operations only.
ONLY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("shape", "causal", "window_size", "softcap", "learnable_sink", "softmax_scale"),
        ("forward", "backward", "repeat"),
    ),
    "baseline": ("forward", "backward"),
    "quantisation": ("forward",),
    "truth": ("forward",),
    "deterministic": ("backward", "repeat"),
    "lse_gradient": ("backward", "repeat"),
    "runs": ("repeat",),
    "loaded": ("repeat",),
}
# Operations whose result must have a limit: zeros with a right LSE would pass a forward that is judged on LSE alone.
NEEDED: dict[str, tuple[str, ...]] = {"forward": ("o",), "backward": ("dq", "dk", "dv")}
UNBOUNDED = "none"
# A suite is held in memory, and every case gets a line in every report.
MOST_CASES = 100_000
# Sizes and positions as kernels count them, and what a run file can hold.
INT32, INT64, FLOAT32_MAX = 2**31 - 1, 2**63 - 1, (2 - 2**-23) * 2.0**127


def read_block(
    block: Any, key: str, budgets: Mapping[str, Budget], suite: str, full: Mapping[str, Any]
) -> Iterator[Case]:
    """Yield the cases of one block, in the order of its axes, the last axis fastest; what `full` sets wins."""
    if not isinstance(block, dict):
        raise SuiteError(key, repr(block), "a table [[cases]]")
    base: Settings = {}
    for name, value in block.items():
        if name != "axes":
            _apply(base, name, value, f"{key}.{name}")
    for settings in _expand(base, block.get("axes", {}), f"{key}.axes"):
        for name, value in full.items():
            _apply(settings, name, value, f"full.{name}")
        yield _case(settings, key, budgets, suite)


def _expand(base: Settings, axes: Any, key: str) -> Iterator[Settings]:
    """Yield the settings of each point of the axes' Cartesian product."""
    lists = dict(_axes(axes, key))
    count = math.prod(map(len, lists.values()))
    if count > MOST_CASES:
        raise SuiteError(key, f"more than {MOST_CASES} cases ({count})", "fewer, in several suites perhaps")
    for choice in itertools.product(*(range(len(values)) for values in lists.values())):
        settings = dict(base)
        for (name, values), i in zip(lists.items(), choice, strict=True):
            place = f"{key}.{name}[{i}]"
            if name == "variants":
                if not isinstance(values[i], dict):
                    raise SuiteError(place, repr(values[i]), "a table of fields of a case")
                for field, value in values[i].items():
                    _apply(settings, field, value, f"{place}.{field}")
            else:
                _apply(settings, name, values[i], place)
        yield settings


def _axes(axes: Any, key: str, prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield dotted names and lists; TOML reads an unquoted dotted key as a nested table."""
    if not isinstance(axes, dict):
        raise SuiteError(key, repr(axes), "a table [cases.axes]")
    for name, values in axes.items():
        if isinstance(values, dict):
            yield from _axes(values, f"{key}.{name}", f"{prefix}{name}.")
        elif not isinstance(values, list) or not values:
            raise SuiteError(f"{key}.{name}", repr(values), "a list of at least one value")
        else:
            yield f"{prefix}{name}", values


def _apply(settings: Settings, name: str, value: Any, key: str) -> None:
    """Set one field, spreading tables and shorthands; what is set later wins."""
    head, _, rest = name.partition(".")
    if head not in FIELDS:
        known = [*FIELDS, "variants"] if ".axes." in key else [*FIELDS, "axes"]
        raise SuiteError(key, f"an unknown key {name!r}", one_of(head, known))
    if rest and head not in TABLES:
        raise SuiteError(key, f"an unknown key {name!r}", repr(head))
    if rest:
        if head == "shape" and rest not in SHAPE_FIELDS:
            raise SuiteError(key, f"an unknown key {name!r}", one_of(rest, SHAPE_FIELDS))
        if head == "quantisation" and rest not in QUANTISATION_FIELDS:
            raise SuiteError(key, f"an unknown key {name!r}", one_of(rest, QUANTISATION_FIELDS))
        for field in ("shape.seqlen_q", "shape.seqlen_k") if name == "shape.seqlen" else (name,):
            settings[field] = (value, key)
    elif head == "distribution" and isinstance(value, str):
        _apply(settings, head, {"name": value}, key)
        settings["distribution.name"] = (value, key)
    elif head in TABLES:
        if not isinstance(value, dict):
            raise SuiteError(key, repr(value), "a name or a table" if head == "distribution" else "a table")
        if "name" in value and head == "distribution":
            for old in [field for field in settings if field.startswith("distribution.")]:
                del settings[old]
        for field, item in value.items():
            _apply(settings, f"{head}.{field}", item, f"{key}.{field}")
    else:
        settings[head] = (value, key)


def _case(settings: Settings, key: str, budgets: Mapping[str, Budget], suite: str) -> Case:
    """Build and check one case."""
    hints = get_type_hints(Case)
    fields: dict[str, Any] = {"operation": "forward"}
    for name, (value, where) in settings.items():
        if "." not in name and name not in ("budgets", "window_size"):
            fields[name] = converted(value, hints[name], where)

    def place(name: str) -> str:
        return settings[name][1] if name in settings else f"{key}.{name}"

    for name in ("kernel", "distribution.name"):
        if name not in settings:
            raise SuiteError(f"{key}.{name.split('.')[0]}", "nothing", "a name: it is required")
    operation = fields["operation"]
    for name in settings:
        allowed = ONLY.get(name.split(".")[0])
        if allowed and operation not in allowed:
            article = "an" if operation == "exp2" else "a"
            raise SuiteError(place(name), f"{name} in {article} {operation} case", _operations(allowed))
    fields["shape"] = _shape(settings, key)
    fields["options"] = {name[8:]: value for name, (value, _) in settings.items() if name.startswith("options.")}
    how = {name[13:]: value for name, value in settings.items() if name.startswith("quantisation.")}
    if how:
        hints_of_how = get_type_hints(Quantisation)
        fields["quantisation"] = Quantisation(
            **{name: converted(value, hints_of_how[name], where) for name, (value, where) in how.items()}
        )
    if "window_size" in settings:
        fields["window_size"] = _window(*settings["window_size"])
    arguments = {name[13:]: value for name, (value, _) in settings.items() if name.startswith("distribution.")}
    fields["distribution"] = Distribution(converted(arguments.pop("name"), str, place("distribution.name")), arguments)
    try:
        bind(fields["distribution"], "distribution")
    except SuiteError as error:
        name = "distribution.name" if error.key == "distribution" else error.key
        raise SuiteError(place(name), error.found, error.expected) from None
    _check_values(fields, place)
    case = Case(id="", suite=suite, **fields)
    entry = TABLE[case.distribution.name]
    if case.operation not in entry.operations:
        found = f"{case.distribution.name!r} in a case of operation {case.operation!r}"
        raise SuiteError(place("distribution.name"), found, _operations(entry.operations))
    if lack := entry.missing(case):
        raise SuiteError(place("distribution.name"), f"{case.distribution.name!r} without what it needs", lack)
    case = msgspec.structs.replace(case, budgets=_budgets(settings, case, key, budgets))
    return msgspec.structs.replace(case, id=case_id(case))


def _operations(names: Sequence[str]) -> str:
    return f"operation = {' or '.join(map(repr, names))}"


def _shape(settings: Settings, key: str) -> Shape:
    """Return the shape; heads_kv defaults to heads and head_dim_v to head_dim."""
    sizes = {}
    for name, (value, place) in settings.items():
        if name.startswith("shape."):
            field = name.removeprefix("shape.")
            sizes[field] = converted(value, int, place)
            least = 0 if field.startswith("seqlen") else 1
            if not least <= sizes[field] <= INT32:
                raise SuiteError(place, str(value), f"an integer of at least {least}, and at most {INT32}")
    sizes.setdefault("heads", 1)
    sizes.setdefault("head_dim", 128)
    shape = Shape(**{"heads_kv": sizes["heads"], "head_dim_v": sizes["head_dim"], **sizes})
    if shape.heads % shape.heads_kv:
        place = settings.get("shape.heads_kv", settings.get("shape.heads", (0, f"{key}.shape")))[1]
        raise SuiteError(place, f"heads_kv = {shape.heads_kv}", f"a divisor of heads = {shape.heads}")
    return shape


def _window(value: Any, place: str) -> tuple[int | None, int | None]:
    """Return the window; TOML has no null, so "none" is unbounded."""
    if not isinstance(value, list) or len(value) != 2:
        raise SuiteError(place, repr(value), f'[left, right], each an integer or "{UNBOUNDED}"')
    for i, edge in enumerate(value):
        if edge != UNBOUNDED and (not isinstance(edge, int) or isinstance(edge, bool)):
            raise SuiteError(f"{place}[{i}]", repr(edge), f'an integer or "{UNBOUNDED}"')
        if edge != UNBOUNDED and abs(edge) > INT32:
            raise SuiteError(f"{place}[{i}]", str(edge), f"at most {INT32} either way")
    left, right = (None if edge == UNBOUNDED else edge for edge in value)
    return left, right


def _check_values(fields: Mapping[str, Any], place: Callable[[str], str]) -> None:
    """Check what the types do not say."""
    for name, least in (("softcap", 0.0), ("seed", 0), ("timeout_s", 0.001), ("runs", 2)):
        if name in fields and not least <= fields[name] < float("inf"):
            raise SuiteError(place(name), str(fields[name]), f"a finite number of at least {least}")
    for name in ("seed", "runs"):
        if fields.get(name, 0) > INT64:
            raise SuiteError(place(name), str(fields[name]), f"at most {INT64}")
    for name in ("softmax_scale", "softcap"):  # kernels hold them in float32
        number = fields.get(name)
        if number is not None and not abs(number) <= FLOAT32_MAX:
            raise SuiteError(place(name), str(number), "a finite number that float32 can hold")
    for name in ("kernel", "baseline"):
        if fields.get(name) == "":
            raise SuiteError(place(name), "an empty text", "the name of a kernel")
    eight = fields.get("dtype") in EIGHT_BITS
    if eight and fields["operation"] != "forward":
        raise SuiteError(
            place("dtype"), f"{fields['dtype']!r} in a {fields['operation']} case", "operation = 'forward'"
        )
    if "quantisation" in fields and not eight:
        raise SuiteError(place("quantisation"), "a quantisation of 16-bit inputs", "dtype = 'e4m3' or 'e5m2'")
    if fields.get("baseline") in EIGHT_BITS and not (eight and fields.get("truth") == "draws"):
        found = f"baseline = {fields['baseline']!r}, another format on the same draws"
        raise SuiteError(place("baseline"), found, "an 8-bit dtype and truth = 'draws'")
    for i, counter in enumerate(fields.get("requires", ())):
        if counter not in ACTIVITY:
            raise SuiteError(f"{place('requires')}[{i}]", repr(counter), one_of(counter, ACTIVITY))


def _budgets(settings: Settings, case: Case, key: str, known: Mapping[str, Budget]) -> tuple[Budget, ...]:
    """Return the budgets by name; {kernel} and {dtype} in a name stand for the case's."""
    names, place = settings.get("budgets", ([], f"{key}.budgets"))
    names = converted(names, list[str], place)
    if case.operation == "audit":
        if names:
            raise SuiteError(place, "budgets of an audit", "none: its limits are the contract (docs/audit.md)")
        return ()
    if not names:
        raise SuiteError(place, "no budget", "at least one: a case without a limit proves nothing")
    found = []
    for i, template in enumerate(names):
        name = template.replace("{kernel}", case.kernel).replace("{dtype}", case.dtype)
        if name not in known:
            raise SuiteError(f"{place}[{i}]", f"the unknown budget {name!r}", one_of(name, known))
        budget = known[name]
        if budget.tensor not in TENSORS[case.operation]:
            tensors = " or ".join(TENSORS[case.operation])
            raise SuiteError(f"{place}[{i}]", f"{name!r} on tensor {budget.tensor!r}", f"a budget on {tensors}")
        if case.baseline is None and (budget.kind == "ratio_to_baseline" or budget.metric in OF_BITS):
            raise SuiteError(
                f"{place}[{i}]", f"{name!r}, a comparison with a baseline", "baseline = 'NAME' in the case"
            )
        found.append(budget)
    needed = NEEDED.get(case.operation, ())
    if needed and not any(budget.tensor in needed for budget in found):
        given = " and ".join(dict.fromkeys(budget.tensor for budget in found))
        raise SuiteError(place, f"budgets on {given} only", f"a budget on {' or '.join(needed)}")
    return tuple(found)
