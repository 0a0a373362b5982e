"""The audit of a case: FA4's PTX for one configuration, held to the contract.

Contract: the case's `options.configuration` is the configuration's id (docs/audit.md), of the architecture that its
kernel is for. Facts come from disk where they were extracted before. What has no PTX of FA4's is Unsupported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.kernels.interface import Unsupported
from fa4verify.kernels.registry import kernel

if TYPE_CHECKING:
    from fa4verify.kernels.shipped.audit.contract import Judged
    from fa4verify.vocabulary import Case

FA4 = "fa4@"


def audit(case: Case) -> Judged:
    """Return verdict, findings and facts of the case's configuration.

    Raises
    ------
    Unsupported
        The kernel is none of FA4's own, or flash-attn-4 is not installed.
    ValueError
        There is no such configuration, or it is of another architecture.
    """
    if not case.kernel.startswith(FA4):
        raise Unsupported(f"{case.kernel} has no PTX to audit")
    kernel(case.kernel)  # Unsupported where it cannot run here
    from fa4verify.kernels.shipped.audit import configurations, contract, results

    wanted = case.options.get("configuration")
    architecture = case.kernel.removeprefix(FA4)
    found = [one for one in configurations.every() if one.id == wanted and one.arch == architecture]
    if not found:
        raise ValueError(f"options.configuration = {wanted!r} is no configuration of {architecture}")
    (result,) = results.audited(found)
    return contract.judge(result, contract.load())
