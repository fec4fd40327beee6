"""
The roots of the file tools: the workspace, and further folders that the settings name. Three things are
decided here and nowhere else: which folder a path means, whether it is one of those that the prompt is built
of, and what is out of reach whatever the settings say. The first two are decided by the text of the path, so
that the same call is always of the same kind. What a text does not show is then found on the disk: a folder
or a file that is private, or that the prompt is built of under another name, is known by its device and inode
and is refused.
"""

from __future__ import annotations

import os
import stat
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agent_core.confined_files import Identity, folder_below, identity_of, open_file, parts_of
from agent_core.errors import ToolDenied, ToolFailed, ToolRetry
from agent_core.workspace import PROMPT_FILES, is_of_prompt

_SYSTEM = ("/proc", "/sys", "/dev", "/run/credentials", "/run/secrets")
_KNOWN_FOR_S = 60.0
_JOINERS = "\u200c\u200d"


@dataclass(frozen=True, slots=True)
class Root:
    """A folder that the tools may use."""

    path: Path
    writable: bool
    workspace: bool = False


@dataclass(frozen=True, slots=True)
class RootedPath:
    """
    The resolved place of a path; ``prompt``: prompts are built of it.

    ``shown`` is relative to the workspace, else absolute.
    """

    root: Root
    parts: tuple[str, ...]
    prompt: bool

    @property
    def label(self) -> str:
        """The path as people and models write it."""
        inside = "/".join(self.parts)
        return inside or "." if self.root.workspace else str(self.root.path / inside)

    @property
    def name(self) -> str:
        """Its last part."""
        return self.parts[-1]


class Roots:
    """
    The folders of one home, for all conversations; nothing is touched before the first use.

    ``more`` maps further folders to their writability; ``home`` (but the workspace) and ``private`` are
    closed.
    """

    def __init__(
        self,
        workspace: Path,
        more: Mapping[Path, bool] | None = None,
        *,
        home: Path | None = None,
        private: Sequence[Path] = (),
    ) -> None:
        self.workspace = Root(workspace, writable=True, workspace=True)
        self._roots = [self.workspace, *(Root(path, writable) for path, writable in (more or {}).items())]
        self._home = home
        self._private = (*private, *map(Path, _SYSTEM))
        self._folders: tuple[float, frozenset[Identity]] | None = None

    def list_text(self, *, own: bool = True) -> str:
        """The further folders, for a description."""
        more = self._roots[1:] if own else []
        return ", ".join(f"{root.path} ({'rw' if root.writable else 'ro'})" for root in more)

    # ── by its text ──

    def place(self, path: str, *, own: bool = True, write: bool = False) -> RootedPath:
        """Return the place of ``path`` for the owner (``own``) or a shared workspace. Raises ToolError."""
        parts = _parts(path)
        root = self.workspace
        if path.startswith("/"):
            roots = self._roots if own else self._roots[:1]
            above = [each for each in roots if _begins(parts, each)]
            if not above:
                known = self.list_text(own=own)
                beside = f" Besides: {known}." if known else ""
                raise ToolDenied(f"{path[:200]!r} is outside the workspace.{beside}")
            root = max(above, key=lambda each: len(each.path.parts))
            parts = parts[len(root.path.parts) - 1 :]
        prompt = root.workspace and bool(parts) and is_of_prompt(parts[0])
        place = RootedPath(root, parts, prompt)
        if prompt and not own:
            raise ToolDenied(f"{place.label!r} belongs to the owner.")
        if write and not root.writable:
            raise ToolDenied(f"{root.path} may only be read.")
        if write and not parts:
            raise ToolRetry("Name a file, not the folder.")
        return place

    # ── on the disk ──

    @contextmanager
    def folder(
        self, place: RootedPath, *, write: bool = False, make: bool = False, made: list[str] | None = None
    ) -> Iterator[int]:
        """A handle on the folder that holds ``place``, see `agent_core.confined_files.folder_below`."""
        with self._walk(place.root, place.parts[:-1], place, write=write, make=make, made=made) as handle:
            yield handle

    @contextmanager
    def inside(self, place: RootedPath) -> Iterator[int]:
        """A handle on the folder ``place`` itself."""
        with self._walk(place.root, place.parts, place) as handle:
            yield handle

    def is_there(self, place: RootedPath) -> bool:
        """Return True if something with that name exists. Raises ToolError if access is refused."""
        with suppress(LookupError, FileNotFoundError), self.folder(place) as folder:
            os.stat(place.name, dir_fd=folder, follow_symlinks=False)
            return True
        return False

    def open(self, place: RootedPath, folder: int, *, write: bool = False) -> int:
        """Open a file for reading, or as one to replace (``write``). Raises LookupError, ToolError."""
        try:
            handle = open_file(place.name, folder)
        except ValueError as error:
            raise ToolFailed(f"{place.label!r} cannot be used: {error}.") from error
        try:
            self._check(place, os.fstat(handle), write=write)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def forbidden(self, place: RootedPath, *, write: bool = False) -> frozenset[Identity]:
        """The folders that are not entered on the way to ``place``."""
        private = self._private_folders()
        own = _identities([self.workspace.path])
        if not place.root.workspace:
            return private | own | self._prompt_folders()
        return private - own | (self._prompt_folders() if write and not place.prompt else frozenset())

    @contextmanager
    def _walk(
        self,
        root: Root,
        parts: Sequence[str],
        place: RootedPath,
        *,
        write: bool = False,
        make: bool = False,
        made: list[str] | None = None,
    ) -> Iterator[int]:
        try:
            with folder_below(
                root.path, parts, forbidden=self.forbidden(place, write=write), make=make, made=made
            ) as handle:
                yield handle
        except ValueError as error:
            raise ToolFailed(f"{place.label!r} cannot be used: {error}.") from error

    def _check(self, place: RootedPath, found: os.stat_result, *, write: bool) -> None:
        me = identity_of(found)
        if me in _identities(self._private) or (found.st_nlink > 1 and self._in_home(me)):
            raise ToolDenied(f"{place.label!r} is kept private.")
        if not write:
            return
        if found.st_nlink != 1:
            raise ToolFailed(f"{place.label!r} has further names (hard links), so it is not changed.")
        prompt = _identities(self.workspace.path / name for name in PROMPT_FILES)
        if me in prompt and not place.prompt:
            raise ToolDenied(f"{place.label!r} is part of the prompt under another name; use that.")

    def _private_folders(self) -> frozenset[Identity]:
        """The folders of the home, without the workspace; looked for again after a minute."""
        now = time.monotonic()
        if self._folders is None or now - self._folders[0] > _KNOWN_FOR_S:
            found = set(_identities(self._private))
            workspace = _identities([self.workspace.path])
            for folder, status in _below(self._home, but=workspace, files=False):
                del folder
                found.add(identity_of(status))
            if self._home is not None:
                found |= _identities([self._home])
            self._folders = now, frozenset(found)
        return self._folders[1]

    def _prompt_folders(self) -> frozenset[Identity]:
        skills = self.workspace.path / "skills"
        inside = {identity_of(status) for _, status in _below(skills, files=False)}
        return frozenset(inside | _identities([skills]))

    def _in_home(self, file: Identity) -> bool:
        """Return True if a file with several names has one of them in the home folder."""
        workspace = _identities([self.workspace.path])
        for number, (_, status) in enumerate(_below(self._home, but=workspace, files=True)):
            if identity_of(status) == file or number > 200_000:
                return True
        return False


def _parts(path: str) -> tuple[str, ...]:
    """The parts of a path as models write them, with ``./`` and ``//``."""
    for char in path:
        if unicodedata.category(char) in ("Cc", "Cs", "Cf") and char not in _JOINERS:
            raise ToolRetry(
                f"The path {path[:200]!a} contains a character that file names here may not have."
            )
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ToolRetry("Write the path without '..'.")
    try:
        return parts_of("/".join(parts)) if parts else ()
    except ValueError as error:
        raise ToolRetry(f"{path[:200]!r} cannot be used: {error}.") from error


def _begins(parts: tuple[str, ...], root: Root) -> bool:
    own = root.path.parts[1:]
    return parts[: len(own)] == own


def _identities(paths: Iterator[Path] | Sequence[Path]) -> frozenset[Identity]:
    found = set()
    for path in paths:
        with suppress(OSError):
            found.add(identity_of(path.stat()))
    return frozenset(found)


def _below(
    folder: Path | None, *, but: frozenset[Identity] = frozenset(), files: bool
) -> Iterator[tuple[str, os.stat_result]]:
    """Every folder (and file) below one, not following links, except for the folders ``but``."""
    waiting = [] if folder is None else [str(folder)]
    while waiting:
        here = waiting.pop()
        with suppress(OSError), os.scandir(here) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                if not is_folder and not files:
                    continue
                with suppress(OSError):
                    # Not entry.stat(): what is mounted there is meant, as an open folder would be.
                    status = os.stat(entry.path, follow_symlinks=False)  # noqa: PTH116
                    if is_folder and stat.S_ISDIR(status.st_mode):
                        if identity_of(status) in but:
                            continue
                        waiting.append(entry.path)
                    yield entry.path, status
