"""
The skills of a workspace that were added from elsewhere: which content the owner has said yes to, and where
it came from. The record lies outside of the workspace, out of reach of tools, commands and synchronisation.
An added skill is used only as long as its folder holds that very content; what the owner writes by hand has
no entry and needs none. The record is written before the files move into place, and cleared after they are
gone, so a kill in between never leaves a folder that counts as the owner's own. Blocks.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_core.errors import SkillInvalid
from agent_core.files import make_folder, replace, sync, write_new
from agent_core.skills.skill_source import FoundSkill, digest_of, fold_name, source_label

_OURS = ".squidbot-"
"""Folders that begin so are on their way in or out; the loader sees no hidden folder."""


@dataclass(frozen=True, slots=True)
class SkillPin:
    """The content that was added: its digest, where it came from, and when, in ISO 8601."""

    sha256: str
    source: str
    added_at: str


class AddedSkills:
    """The added skills in ``folder``, by the file ``record``. One instance per process."""

    def __init__(self, folder: Path, record: Path) -> None:
        self.folder = folder
        self._record = record
        self._lock = threading.Lock()
        self._known: tuple[tuple[int, ...], Mapping[str, SkillPin]] = ((), {})

    def pins(self) -> Mapping[str, SkillPin]:
        """The content of each added skill by its name. Raises SkillInvalid: the record cannot be read."""
        try:
            state = self._record.stat()
            seen = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            if seen != self._known[0]:
                found = json.loads(self._record.read_bytes())
                self._known = seen, {str(name): SkillPin(**pin) for name, pin in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise SkillInvalid(
                f"cannot be trusted, because {self._record} cannot be read; restore it from a backup, or "
                "delete it, and every skill counts as written by you"
            ) from error
        return self._known[1]

    def add(self, name: str, found: FoundSkill, source: Path | str, at: str) -> None:
        """
        Put what the owner has seen into its folder, or pin what is there; ``source`` is a path or an address.

        Raises as `refuse`, OSError.
        """
        with self._lock:
            self.refuse(name, source)
            make_folder(self.folder)
            self._sweep()
            stage, target, pins = self.folder / f"{_OURS}new-{name}", self.folder / name, self.pins()
            is_here = isinstance(source, Path) and source.resolve() == target.resolve()
            if not is_here:
                _write(found, stage)
            label = pins[name].source if is_here and name in pins else source_label(source)
            self._save({**pins, name: SkillPin(digest_of(found.files), label, at)})
            if is_here:
                return
            if target.exists():
                target.rename(self.folder / f"{_OURS}old-{name}")
            stage.rename(target)
            sync(self.folder)
            self._sweep()

    def refuse(self, name: str, source: Path | str) -> None:
        """Raise SkillInvalid if a skill of this name would replace one of the owner's, or be there twice."""
        pins, here = self.pins(), self.folder.resolve()
        whole = source.resolve() if isinstance(source, Path) else None
        if whole == here or (whole and whole.is_relative_to(here) and whole != here / name):
            raise SkillInvalid(f"is in the folder of your skills already; its folder must be called {name}")
        for entry in self.folder.iterdir() if self.folder.is_dir() else ():
            is_replaced = entry.name == name and name in pins and not entry.is_symlink()
            if fold_name(entry.name) == fold_name(name) and not is_replaced and entry.resolve() != whole:
                raise SkillInvalid(f"is not put over {entry}, which is yours: rename or remove that first")

    def remove(self, name: str) -> None:
        """Remove an added skill. Raises SkillInvalid: it was not added."""
        with self._lock:
            pins = dict(self.pins())
            if pins.pop(name, None) is None:
                raise SkillInvalid(f"{name} was not added; delete its folder in {self.folder} yourself")
            self._sweep()
            if (self.folder / name).exists():
                (self.folder / name).rename(self.folder / f"{_OURS}old-{name}")
                sync(self.folder)
            self._save(pins)
            self._sweep()

    def _save(self, pins: Mapping[str, SkillPin]) -> None:
        value: dict[str, Any] = {name: asdict(pins[name]) for name in sorted(pins)}
        replace(self._record, json.dumps(value, indent=1, ensure_ascii=False).encode())

    def _sweep(self) -> None:
        """Remove what an interrupted command has left, and what has just been replaced."""
        for left in self.folder.glob(f"{_OURS}*"):
            shutil.rmtree(left, ignore_errors=True)


def _write(found: FoundSkill, stage: Path) -> None:
    for name, content in found.files.items():
        make_folder((stage / name).parent)
        write_new(stage / name, content)
    for folder, _, _ in os.walk(stage):
        sync(Path(folder))
