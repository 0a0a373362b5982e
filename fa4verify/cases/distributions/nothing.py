"""The distribution of cases that need no inputs."""

from fa4verify.cases.distributions.scores import Arrays
from fa4verify.cases.seeding import Stream
from fa4verify.vocabulary import Case


def nothing(_case: Case, _stream: Stream) -> Arrays:
    """No inputs: an audit reads a kernel's code and runs none of it.

    Detects what no input shows: constants, thresholds and orders of addition that a release of FA4 changed.

    Check: no tensor is drawn.
    """
    return {}
