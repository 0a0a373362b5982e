"""What the laboratory tells a user in one line; apart, so that the command line need not load numba to know it."""


class SetError(ValueError):
    """A coefficient set that cannot be read; one line, for the user."""
