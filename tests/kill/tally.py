"""Counts the kills of a run, for the last lines of ``make kill``."""

from __future__ import annotations

from collections import Counter

__all__ = ["TALLY"]

TALLY: Counter[str] = Counter()
"""SIGKILLs that hit, by what was killed."""
