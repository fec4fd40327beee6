"""
Finds skills in folders: ``FOLDER/<anything>/SKILL.md``. A bad skill is reported once per change and skipped;
it is never fatal. Files are read again only when they have changed; listing otherwise costs one look per
folder. A later folder wins over an earlier one, so that a workspace can replace a bundled skill. A link that
leads out of its folder is refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent_core.errors import SkillInvalid
from agent_core.models import Skill
from agent_core.skills.skill_document import MAX_SKILL_BYTES, SkillDocument, parse_skill

BUNDLED_SKILLS = Path(__file__).parent
"""The folder of the skills that come with the program."""

_FILE = "SKILL.md"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Read:
    seen: tuple[int, int, int]
    document: SkillDocument | None
    problem: str | None


class SkillsLoader:
    """The `SkillsPort` over folders, later ones winning."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._read: dict[Path, _Read] = {}

    @property
    def problems(self) -> list[str]:
        """Describe each skipped skill in one sentence."""
        self._scan()
        return [f"{path}: {read.problem}" for path, read in sorted(self._read.items()) if read.problem]

    def list_skills(self) -> list[Skill]:
        """See `SkillsPort`."""
        return [
            Skill(
                name=document.name,
                description=document.description,
                always=document.always,
                location=str(path),
                missing=self._missing(document),
            )
            for _, (path, document) in sorted(self._scan().items())
        ]

    def load_skill_body(self, name: str) -> str:
        """See `SkillsPort`."""
        found = self._scan().get(name)
        if found is None:
            raise SkillInvalid(f"There is no skill named {name[:80]!r}.")
        return found[1].body

    # ── inside ──

    def _scan(self) -> dict[str, tuple[Path, SkillDocument]]:
        """All sound skills by name, the files read again where they have changed."""
        found: dict[str, tuple[Path, SkillDocument]] = {}
        before, self._read = self._read, {}
        for folder in self._folders:
            here: set[str] = set()
            for path in _skill_files(folder):
                read = self._looked_at(path, folder, before.get(path))
                if read.document is not None and read.document.name in here:
                    problem = f"a second skill named {read.document.name!r} in this folder"
                    read = _Read(read.seen, None, problem)
                if read.document is not None:
                    here.add(read.document.name)
                    found[read.document.name] = (path, read.document)
                self._read[path] = read
                known = before.get(path)
                if read.problem and (known is None or known.problem != read.problem):
                    log.warning("skill.skipped", file=str(path), reason=read.problem)
        return found

    def _looked_at(self, path: Path, folder: Path, known: _Read | None) -> _Read:
        seen = (0, 0, 0)
        try:
            state = path.stat()
            seen = (state.st_ino, state.st_size, state.st_mtime_ns)
            if known is not None and known.seen == seen and known.document is not None:
                return known
            if not path.resolve().is_relative_to(folder.resolve()):
                return _Read(seen, None, "leads out of its folder")
            with path.open("rb") as file:
                return _Read(seen, parse_skill(file.read(MAX_SKILL_BYTES + 1)), None)
        except SkillInvalid as exc:
            return _Read(seen, None, str(exc))
        except OSError as exc:
            return _Read(seen, None, f"cannot be read: {exc.strerror}")

    def _missing(self, document: SkillDocument) -> tuple[str, ...]:
        return tuple(
            [name for name in document.bins if shutil.which(name) is None]
            + [f"${name}" for name in document.env if not os.environ.get(name)]
        )


def _skill_files(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith((".", "_")))
    except OSError:
        return
    for name in names[:200]:
        path = folder / name / _FILE
        if path.is_file():
            yield path
