"""Engines for speech that are large: a machine without a package index, time or room for them skips their tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import pytest

from devservers import ToolsMissing
from devservers.environment import cache_folder, prepare_tools

__all__ = ["engine"]

WITHIN_S = 180.0
ROOM_BYTES = 4_000_000_000
"""For 2 GB with the installer's cache; what proves the service wants more behind them."""


def engine(tools: Literal["speech", "listen"]) -> Path:
    """The Python that has it."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < ROOM_BYTES:
        pytest.skip(f"needs 4 GB of disk, there are {free // 10**6} MB")
    try:
        return prepare_tools(tools, say=print, limit_s=WITHIN_S)
    except ToolsMissing as missing:
        pytest.skip(str(missing))
