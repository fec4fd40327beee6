"""The role of a process among several: ``squidbot run --role``."""

from __future__ import annotations

from enum import StrEnum


class ProcessRole(StrEnum):
    """What this process does for the home of its settings."""

    ALL = "all"
    """Everything: the whole gateway."""
    ACCOUNTS = "accounts"
    """Everything, but what a worker can do is left to workers while one lives."""
    WORKER = "worker"
    """Only thinking, in conversations of accounts that other processes have."""
