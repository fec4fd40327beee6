"""
How fast a figure grows, and how sure that is: a straight line through samples that depend on each other.

Memory does not jump about freely: a sample is close to the one before it, so a hundred samples say less than a
hundred throws of a die would. The error of the slope is widened accordingly (the effective number of samples,
from the correlation of neighbouring residuals), and the band is two such errors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

_FEWEST = 10
_MAX_CORRELATED = 0.98


@dataclass(frozen=True, slots=True)
class Slope:
    """So much per unit of x, give or take ``band`` (two standard errors)."""

    each: float
    band: float

    @property
    def is_noise(self) -> bool:
        """Whether zero lies within the band."""
        return abs(self.each) <= self.band


def fit(points: Sequence[tuple[float, float]]) -> Slope:
    """
    The straight line through (x, y), by least squares.

    Raises:
        ValueError: Fewer than ten points, or all at one place: nothing can be said.
    """
    count = len(points)
    if count < _FEWEST:
        raise ValueError(f"{count} samples are too few for a slope")
    middle_x = sum(x for x, _ in points) / count
    middle_y = sum(y for _, y in points) / count
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    if spread == 0:
        raise ValueError("all samples are of one moment")
    each = sum((x - middle_x) * (y - middle_y) for x, y in points) / spread
    residuals = [y - middle_y - each * (x - middle_x) for x, y in points]
    square = sum(one * one for one in residuals)
    if square == 0:
        return Slope(each, 0.0)
    neighbours = sum(one * two for one, two in itertools.pairwise(residuals)) / square
    correlation = min(max(neighbours, 0.0), _MAX_CORRELATED)
    effective = max(count * (1 - correlation) / (1 + correlation), 3.0)
    return Slope(each, 2 * math.sqrt(square / (effective - 2) / spread))
