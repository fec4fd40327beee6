"""
Finds skills in folders: ``FOLDER/<anything>/SKILL.md``. A bad skill is reported once per change and skipped;
it is never fatal. Files are read again only when they have changed; listing otherwise costs one look per
folder. A later folder wins over an earlier one, so that a workspace can replace a bundled skill. A link that
leads out of its folder is refused. A skill that was added from elsewhere is used only while all of its files
are those that the owner has said yes to (`AddedSkills`); else it is listed without its text, as stopped.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent_core.confined_files import open_below
from agent_core.errors import SkillInvalid
from agent_core.models import Skill
from agent_core.skills.added_skills import AddedSkills, SkillPin
from agent_core.skills.skill_document import MAX_SKILL_BYTES, SkillDocument, parse_skill
from agent_core.skills.skill_source import (
    SKILL_FILE,
    digest_of,
    is_left_out,
    list_skill_files,
    read_skill_folder,
    signature_of,
)
from agent_core.skills.suspicious_text import find_suspicious
from agent_core.text import decode_text

BUNDLED_SKILLS = Path(__file__).parent
"""The folder of the skills that come with the program."""

_STOPPED = "the owner's yes, because it is not what was added"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Read:
    """``digests`` of all files and ``stopped``, its name, are those of an added skill."""

    seen: object
    document: SkillDocument | None
    problem: str | None
    digests: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""


class SkillsLoader:
    """The `SkillsPort` over folders, later ones winning; ``added`` knows what came from elsewhere."""

    def __init__(self, *folders: Path, added: AddedSkills | None = None) -> None:
        self._folders = folders
        self.added = added
        self._read: dict[Path, _Read] = {}

    @property
    def problems(self) -> list[str]:
        """Describe each skipped skill in one sentence."""
        self._scan()
        return [f"{path}: {read.problem}" for path, read in sorted(self._read.items()) if read.problem]

    def list_skills(self) -> list[Skill]:
        """See `SkillsPort`."""
        found = [
            Skill(
                name=document.name,
                description=document.description,
                always=document.always,
                location=str(path),
                missing=self._missing(document),
            )
            for path, document in self._scan().values()
        ]
        known = {each.name for each in found}
        stopped = ((read.stopped, path) for path, read in self._read.items() if read.stopped)
        for name, path in stopped:
            if name not in known:
                found.append(Skill(name, "", location=str(path), missing=(_STOPPED,)))
        return sorted(found, key=lambda each: each.name)

    def load_skill_body(self, name: str) -> str:
        """See `SkillsPort`."""
        return self._found(name)[1].body

    def list_skill_files(self, name: str) -> Sequence[str]:
        """See `SkillsPort`."""
        path, _ = self._found(name)
        try:
            return [each for each in list_skill_files(path.parent) if each != SKILL_FILE][:50]
        except (SkillInvalid, OSError):  # the text itself is there all the same
            return []

    def load_skill_file(self, name: str, file: str) -> str:
        """See `SkillsPort`."""
        path, _ = self._found(name)
        digests = self._read[path].digests
        try:
            is_there = file in digests if digests else not is_left_out(file.split("/"))
            with os.fdopen(open_below(path.parent, file if is_there else ""), "rb") as handle:
                content = handle.read(MAX_SKILL_BYTES + 1)
        except (LookupError, ValueError, OSError) as error:
            raise SkillInvalid(f"The skill {name[:80]!r} has no file {file[:200]!r}.") from error
        if len(content) > MAX_SKILL_BYTES or b"\0" in content:
            raise SkillInvalid(f"{file[:200]!r} is no text of at most {MAX_SKILL_BYTES} bytes.")
        if digests and hashlib.sha256(content).hexdigest() != digests[file]:
            raise SkillInvalid(f"{file[:200]!r} has changed since the skill was added.")
        return decode_text(content)

    def check_change(self, parts: Sequence[str], content: bytes) -> list[str]:
        """Name what to read in a skill's file that is about to be written. Raises SkillInvalid."""
        if self.added is not None and parts[0] in self.added.pins():
            raise SkillInvalid("is part of an added skill, which is not used once it differs; write another")
        if tuple(parts[1:]) == (SKILL_FILE,):
            parse_skill(content, parts[0])
        found = find_suspicious(decode_text(content[:MAX_SKILL_BYTES]))
        return [f"Read line {each.line}: it {each.why}: {each.words}" for each in found]

    def usable_folders(self) -> list[Path]:
        """The folders of sound skills, without those that come with the program."""
        folders = [path.parent for path, _ in self._scan().values()]
        return [folder for folder in folders if folder.parent != BUNDLED_SKILLS]

    # ── inside ──

    def _found(self, name: str) -> tuple[Path, SkillDocument]:
        found = self._scan().get(name)
        if found is None:
            stopped = next(
                (read.problem for read in self._read.values() if name and read.stopped == name), None
            )
            raise SkillInvalid(
                f"The skill {name[:80]!r} {stopped}."
                if stopped
                else f"There is no skill named {name[:80]!r}."
            )
        return found

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
        seen: object = None
        try:
            pins = self.added.pins() if self.added is not None and folder == self.added.folder else {}
            if (pin := pins.get(path.parent.name)) is not None:
                return _verified(path, pin, known)
            state = path.stat()
            seen = (state.st_ino, state.st_size, state.st_mtime_ns)
            read = known
            if known is None or known.seen != seen or known.document is None:
                if not path.resolve().is_relative_to(folder.resolve()):
                    return _Read(seen, None, "leads out of its folder")
                with path.open("rb") as file:
                    read = _Read(seen, parse_skill(file.read(MAX_SKILL_BYTES + 1), path.parent.name), None)
            name = read.document.name if read is not None and read.document is not None else ""
            if read is None or name in pins:  # else it would be used without being compared
                return _Read(seen, None, f"is not in the folder of the skill {name} that was added")
            return read
        except SkillInvalid as exc:
            return _Read(seen, None, str(exc))
        except OSError as exc:
            return _Read(seen, None, f"cannot be read: {exc.strerror}")

    def _missing(self, document: SkillDocument) -> tuple[str, ...]:
        return tuple(
            [name for name in document.bins if shutil.which(name) is None]
            + [f"${name}" for name in document.env if not os.environ.get(name)]
        )


def _verified(path: Path, pin: SkillPin, known: _Read | None) -> _Read:
    """Read an added skill as a whole, and compare it with what was added."""
    folder, name = path.parent, path.parent.name
    try:
        seen = (pin, folder.is_symlink(), signature_of(folder))
        if known is not None and known.seen == seen:
            return known
        files = {} if folder.is_symlink() else read_skill_folder(folder).files
        if digest_of(files) == pin.sha256:
            digests = {each: hashlib.sha256(content).hexdigest() for each, content in files.items()}
            return _Read(seen, parse_skill(files[SKILL_FILE], name), None, digests)
    except (SkillInvalid, OSError):
        seen = None
    told = (
        f"is not what was added from {pin.source}, so it is not used. The owner can read it and run: "
        f"squidbot skills add {folder}"
    )
    return _Read(seen, None, told, stopped=name)


def _skill_files(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith((".", "_")))
    except OSError:
        return
    for name in names[:200]:
        path = folder / name / SKILL_FILE
        if path.is_file():
            yield path
