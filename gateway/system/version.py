"""Versions of squidbot and of its libraries."""

from __future__ import annotations

from functools import cache


def version() -> str:
    """Our own version."""
    return version_of("squidbot-gateway")


@cache
def version_of(distribution: str) -> str:
    """The installed version of a distribution, ``unknown`` where it is not installed."""
    from importlib import metadata  # noqa: PLC0415 - it takes longer to load than most commands need

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
