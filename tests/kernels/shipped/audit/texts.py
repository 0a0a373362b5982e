"""PTX of a few kernels of the installed release, compiled once a process (and kept on disk as everybody's are)."""

import functools

import pytest

from fa4verify import kernels
from fa4verify.kernels.shipped.audit.configurations import every
from fa4verify.kernels.shipped.audit.results import Result

REASON = kernels.availability("fa4@sm_100a")
needs_fa4 = pytest.mark.skipif(REASON is not None, reason=str(REASON))
BLACKWELL = "fwd-sm_100a-d128-full-bf16-mha"
FP8 = "fwd-sm_100a-d128-full-e4m3-mha"
GRADIENT = "bwd-sm_90a-d64-full-bf16-mha"
BY_ID = {one.id: one for one in every()}


@functools.cache
def texts(identity):
    """Return what is compiled for a configuration."""
    from fa4verify.kernels.shipped.audit.compilation import compiled

    return compiled(BY_ID[identity])


def result(identity, edit=lambda ptx: ptx):
    """Return the facts of a configuration whose PTX is edited first."""
    from fa4verify.kernels.shipped.audit.extract import facts_of, together

    gathered = {}
    for one in texts(identity):
        gathered = together(gathered, facts_of(edit(one.ptx), one.parameters))
    return Result(BY_ID[identity], gathered)


@functools.cache
def clean(identity):
    """Return the facts of the text as it is."""
    return result(identity)
