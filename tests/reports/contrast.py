"""Contrast of two colours by WCAG 2.2: (L1 + 0.05) / (L2 + 0.05) of their relative luminances."""

from __future__ import annotations

import re


def luminance(colour: tuple[float, ...]) -> float:
    """Return the relative luminance of an sRGB colour of numbers from 0 to 255."""
    linear = [part / 255 / 12.92 if part / 255 <= 0.04045 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ratio_of(one: str, other: str) -> float:
    """Return the contrast of two colours, each "#rrggbb" or "rgb(r, g, b)"."""
    brighter, darker = sorted((luminance(_parsed(one)), luminance(_parsed(other))), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def _parsed(colour: str) -> tuple[float, ...]:
    if colour.startswith("#"):
        return tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return tuple(float(part) for part in re.findall(r"[\d.]+", colour)[:3])
