"""Versions of ourselves and of what we stand on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["version_of"]


def version_of(distribution: str) -> str:
    """The installed version of a distribution, ``unknown`` where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
