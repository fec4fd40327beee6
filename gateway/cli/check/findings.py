"""One thing that `squidbot check --state` has found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Trouble"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """
    One thing that is wrong with the state.

    ``part`` groups it in the report: histories, records, memory, database, search index, attachments.
    ``serious``: it is damage, and not only worth knowing. ``files`` are touched by ``mend``, which gets the
    folder to keep things in; None: no machine can, and ``remedy`` says what a person can do.
    """

    part: str
    text: str
    files: tuple[Path, ...] = ()
    mend: Callable[[Path], None] | None = None
    serious: bool = True
    remedy: str = ""
