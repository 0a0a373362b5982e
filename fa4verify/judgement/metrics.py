"""Errors of one tensor against its truth."""

from __future__ import annotations

import numpy as np

from fa4verify.vocabulary import Metrics, Output, Truth


def measure(output: Output, truth: Truth) -> dict[str, Metrics]:
    """Return the metrics of every tensor that the truth holds."""
    found = {}
    for name, exact in truth.tensors.items():
        error = getattr(output, name).double().numpy() - exact
        rmse = float(np.sqrt(np.mean(error**2)))
        found[name] = Metrics({"rmse": rmse, "relative_rmse": rmse / float(np.sqrt(np.mean(exact**2)))})
    return found
