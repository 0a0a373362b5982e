"""One case again and again, and a twin of it whose adds come in random orders.

Contract: `repeat` yields what each of `case.runs` runs gave, forward and backward, where the kernel left it (the memory
may be the same each time), and keeps none of it: when the next is asked for, the gradients are filled with NaN, so that
a kernel which returns its last answer again, or does not write all of it, is no repetition. A loaded run's activity
"load_products" says how many products the other stream queued meanwhile. Run i has seed i: asked for
deterministic=False, an emulation adds in another order each time; any other kernel just runs again. `shuffled` yields
SHUFFLES runs of one of our emulations with deterministic=False on the same inputs, whatever the kernel under test is: a
case on which these agree could not have told one order from another.

A kernel refuses `deterministic` by not taking it, by Unsupported, or by an error that deterministic=False does not
raise. All three become Unsupported, with the kernel's own words.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from fa4verify.kernels.call import place, run, run_placed
from fa4verify.kernels.interface import ContractViolation, NoDevice, Unsupported
from fa4verify.kernels.registry import kernel
from fa4verify.kernels.user import UserKernel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from fa4verify.kernels.gpu.load import Load
    from fa4verify.vocabulary import Case, Inputs, Output

SHUFFLES = 3
# The emulations whose order of adds can be drawn; the first stands for every other kernel.
TWINS = ("fa4-sm90", "fa4-sm100")


def repeat(case: Case, inputs: Inputs, *, device: str | None = None) -> Iterator[Output]:
    """Yield the outputs of `case.runs` runs on the same inputs; a `loaded` case keeps the device busy meanwhile.

    Raises
    ------
    Unsupported
        The kernel declines the case, or the case asks for `deterministic` and the kernel refuses it.
    """
    if case.deterministic and not takes_flag(case.kernel):
        raise Unsupported(f"{case.kernel} does not take deterministic")
    with _load(case, device) as load:
        for output in _runs(case, inputs, device):
            if load is not None:
                output = replace(output, activity={**output.activity, "load_products": load.since()})
            yield output
            _spoil(output)


def _runs(case: Case, inputs: Inputs, device: str | None) -> Iterator[Output]:
    there = place(case, inputs, device)
    for index in range(case.runs):
        try:
            output = run_placed(case, there, seed=index)
        except (Unsupported, ContractViolation):
            raise
        except Exception as error:
            if index == 0 and case.deterministic and _runs_without(case, inputs, device):
                said = " ".join(str(error).split())
                raise Unsupported(
                    f"{case.kernel} refuses deterministic=True: {type(error).__name__}: {said}"
                ) from error
            raise
        yield output


def _spoil(output: Output) -> None:
    """Fill the gradients with NaN where they lie; those that cannot be written stay."""
    for tensor in (output.dq, output.dk, output.dv, output.delta, output.dsink):
        if tensor is None or any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
            continue
        with suppress(RuntimeError):  # of torch's inference mode
            tensor.fill_(float("nan"))


def _load(case: Case, device: str | None) -> AbstractContextManager[Load | None]:
    """Return what keeps the device busy, where the case asks for it and the kernel runs there."""
    if not case.loaded:
        return nullcontext()
    if device is None or not device.startswith("cuda"):
        raise NoDevice("a loaded case needs a GPU whose second stream can be kept busy")
    from fa4verify.kernels.gpu.load import Load

    return Load(device)


def shuffled(case: Case, inputs: Inputs) -> Iterator[Output]:
    """Yield the outputs of SHUFFLES random orders of the adds of the case's twin.

    Raises
    ------
    Unsupported
        No twin runs this case.
    """
    twin = msgspec.structs.replace(case, kernel=twin_of(case), deterministic=False, options=_twin_options(case))
    for seed in range(SHUFFLES):
        yield run(twin, inputs, seed=seed)


def twin_of(case: Case) -> str:
    """Return the emulation that stands for the case's kernel: itself if it is one whose order can be drawn.

    Head dim 256 on Blackwell has no adds to order (fa4_sm100.py); there Hopper's tells whether an order would show.
    """
    ordered = case.kernel in TWINS and (case.kernel != "fa4-sm100" or case.shape.head_dim < 256)
    return case.kernel if ordered else TWINS[0]


def _twin_options(case: Case) -> dict[str, object]:
    """Keep a kernel's own options for itself; of others', only the dtype of the gradients means the same."""
    same = twin_of(case) == case.kernel
    return {name: value for name, value in case.options.items() if same or name == "grad_dtype"}


def takes_flag(name: str) -> bool:
    """Return whether the kernel's backward, or the function that autograd differentiates, takes `deterministic`."""
    under_test = kernel(name)
    if isinstance(under_test, UserKernel):
        return under_test.takes_deterministic
    backward = getattr(under_test, "backward", None)
    # Without a backward there is nothing to take it, and `run` says so.
    return backward is None or "deterministic" in inspect.signature(backward).parameters


def _runs_without(case: Case, inputs: Inputs, device: str | None) -> bool:
    try:
        run(msgspec.structs.replace(case, deterministic=False), inputs, seed=0, device=device)
    except Exception:  # then the flag is not what it fails on
        return False
    return True
