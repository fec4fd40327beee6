"""
Changes `pathlib`, so that the names of files do not stay with the process.

Before Python 3.14 `pathlib` interns each part of each path (python/cpython#119518). A mailbox brings new
names with every conversation: of a session, its record, and what is written beside them before a rename.
From 3.12.0 to 3.12.6 an interned string is never freed (python/cpython#113993), and a daemon grows by some
400 bytes for each conversation. In other versions the names go, but the table of interned strings doubles
once they have gone through its free places, by 2 MB at the size that the daemon's has.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import ModuleType
from typing import Any


class _Sys(ModuleType):
    """`sys`, as `pathlib` sees it from then on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    @staticmethod
    def intern(name: str) -> str:
        """The name itself; that equal ones are one object is a saving and no promise."""
        return name


def intern_no_path_names() -> bool:
    """Let `pathlib` make paths of ordinary strings. Returns whether there was anything to change."""
    inside = vars(sys.modules[PurePath.__module__])
    if sys.version_info >= (3, 14) or inside.get("sys") is not sys:
        return False
    inside["sys"] = _Sys("sys")
    return True
