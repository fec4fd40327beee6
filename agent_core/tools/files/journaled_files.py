"""
Reads and changes the files of the roots: each change happens exactly once, and the earlier content is kept. A
change is recorded (`ChangeJournal.begin`), written beside the file, renamed if the name still stands for what
was read, and recorded as made. A repeated call has the same key and decides by the content: old means undone,
new done, any other somebody else's, which is reported and not overwritten. Blocks; one change at a time.
Another program can lose a write only between the last check and the rename.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from agent_core.errors import SkillInvalid, ToolError, ToolFailed, ToolRetry
from agent_core.files import write_all
from agent_core.provenance import Origins, join_origins, untrusted_origin
from agent_core.tools.files.change_journal import ChangeJournal, ChangeKind, FileChange, digest_of
from agent_core.tools.files.roots import RootedPath, Roots
from agent_core.tools.files.workspace_contents import identity_of_name

MAX_WRITE_BYTES = 1_000_000
"""No content that a call writes is larger."""
MAX_FILE_BYTES = 50_000_000
"""Larger files are only looked at: nobody keeps an earlier version of them."""
_TEMPORARY = (".squidbot-", ".tmp")
ANYTHING: Final = "anything"
"""Whatever the file holds now is replaced."""

Expected = str | None
"""The content that a call relies on: its hash, None for no file, or `ANYTHING`."""


@dataclass(frozen=True, slots=True)
class ChangeAuthor:
    """
    The author of a change: turn and conversation, the origins of its words, the call's name, and the
    `state_of` the file that somebody has approved to be changed.
    """

    turn: str = ""
    session: str = ""
    key: str = ""
    origins: Origins = ()
    approved: str = ""

    def change(self, kind: ChangeKind, path: str, **rest: Any) -> FileChange:
        """A change that this author intends now."""
        return FileChange(
            id=0,
            key=self.key,
            at=datetime.now(UTC),
            turn=self.turn,
            session=self.session,
            kind=kind,
            path=path,
            **rest,
        )


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as it was read; ``is_name``: a folder or a link, whose ``digest`` is no hash of its content."""

    content: bytes
    digest: str
    status: os.stat_result
    is_name: bool = False


def state_of(found: FileState | None) -> str:
    """Return the content digest of a file, or "none", for a `agent_core.tools.effects.Review`."""
    return found.digest if found else "none"


def is_leftover(name: str) -> bool:
    """Return True for a temporary file of a change, also one left behind by a crash."""
    return name.startswith(_TEMPORARY[0]) and name.endswith(_TEMPORARY[1])


class JournaledFiles:
    """The files of one home. One instance for all conversations."""

    def __init__(
        self,
        roots: Roots,
        journal: ChangeJournal,
        *,
        check_skill: Callable[[Sequence[str], bytes], list[str]] = lambda _parts, _content: [],
    ) -> None:
        self.roots = roots
        self.journal = journal
        self._check_skill = check_skill

    # ── reading ──

    def read_state(self, place: RootedPath) -> FileState | None:
        """Read a whole file; None if there is none. Raises ToolError, also past `MAX_FILE_BYTES`."""
        with _explain_errors(place), suppress(LookupError), self.roots.folder(place) as folder:
            return self._found(place, folder)
        return None

    def read_whole(self, place: RootedPath) -> FileState | None:
        """As `read_state`, and for a folder or a link its name: that is all that there is to read of it."""
        if place.parts:
            missing = suppress(LookupError, FileNotFoundError)
            with _explain_errors(place), missing, self.roots.folder(place) as folder:
                status = os.stat(place.name, dir_fd=folder, follow_symlinks=False)
                if name := identity_of_name(place.name, status, folder=folder):
                    return FileState(b"", name, status, is_name=True)
        return self.read_state(place)

    def origins_of(self, place: RootedPath, digest: str | None, changed_at: float | None = None) -> Origins:
        """
        The origins of a file.

        What came from elsewhere may be anybody's. What the prompt is built of is the exception: it is the
        owner's to write, and a prompt takes it at its word anyway.
        """
        known = None if digest is None else self.journal.origins_of(place.label, digest)
        if known is not None:
            return known
        if place.prompt:
            return ()
        at = None if changed_at is None else datetime.fromtimestamp(changed_at, UTC)
        return (untrusted_origin("file", place.label, at),)

    def remarks_on(self, place: RootedPath, content: bytes | None) -> list[str]:
        """Name what a person should read in a file of a skill. Raises ToolRetry: it could not be used."""
        if content is None or not place.prompt or len(place.parts) < 2:
            return []
        try:
            return self._check_skill(place.parts[1:], content)
        except SkillInvalid as error:
            raise ToolRetry(f"{place.label!r} {error}.") from error

    # ── changing ──

    def replace(
        self,
        place: RootedPath,
        content: Callable[[FileState | None], bytes | None],
        *,
        kind: ChangeKind,
        by: ChangeAuthor,
        expected: Expected = ANYTHING,
        undoes: int | None = None,
        taken_over: Origins | None = None,
        mode: int = 0o600,
    ) -> FileChange | None:
        """
        Replace, create or (content None) delete a file; None if nothing changes. Raises ToolError.

        Args:
            content: Makes the new content of the old; may raise ToolError.
            expected: The required digest of the file.
            undoes: The change that is undone.
            taken_over: The origins of the content; default: those of ``by``, in an edit also of the old one.
            mode: The mode of a new file.
        """
        with self.journal.lock, _explain_errors(place):
            earlier = self.journal.find_by_call(by.key)
            makes, folders = kind in ("write", "undo"), list[str]()
            try:
                with self.roots.folder(place, write=True, make=makes, made=folders) as folder:
                    found = self._found(place, folder, write=True)
                    if earlier is not None and self._is_done(earlier, found):
                        return self._finish(earlier, folder)
                    if earlier is None:
                        # A file that is gone may be written again: nothing of it can be lost.
                        known = None if kind == "write" and found is None else expected
                        check_expected_content(place, found, known, by.approved)
                    new = content(found)
                    if earlier is None and not _differs(found, new):
                        return None
                    change = earlier or self._intended(place, kind, by, found, new, mode, undoes, taken_over)
                    change = replace(change, folders=max(change.folders, len(folders)))
                    return self._make(change, place, folder, found, new)
            except LookupError as error:
                raise ToolRetry(_none(place)) from error

    def move(
        self,
        source: RootedPath,
        target: RootedPath,
        *,
        by: ChangeAuthor,
        kind: ChangeKind = "move",
        expected: Expected = ANYTHING,
        undoes: int | None = None,
    ) -> FileChange:
        """Move a file to a free name. Raises ToolError with the remedy."""
        with self.journal.lock, _explain_errors(source):
            earlier, folders = self.journal.find_by_call(by.key), list[str]()
            try:
                with (
                    self.roots.folder(source, write=True) as origin,
                    self.roots.folder(target, write=True, make=True, made=folders) as folder,
                ):
                    found = self._found(source, origin, write=True)
                    there = self._found(target, folder, write=True)
                    if earlier is not None and _is_moved(earlier, found, there):
                        if found is not None:  # copied to another disk, and then interrupted
                            os.unlink(source.name, dir_fd=origin)
                        return self._finish(earlier, folder)
                    if found is None:
                        raise ToolRetry(_none(source))
                    if there is not None:
                        raise ToolRetry(f"{target.label!r} already exists; choose another name.")
                    if earlier is None:
                        check_expected_content(source, found, expected, by.approved)
                    renamed = source.parts[:-1] == target.parts[:-1] and source.root == target.root
                    _refuse_namesake(target, folder, but=source.name if renamed else "")
                    change = earlier or by.change(
                        kind,
                        target.label,
                        before=None,
                        after=found.digest,
                        mode=stat.S_IMODE(found.status.st_mode),
                        origins=join_origins(
                            self.origins_of(source, found.digest, found.status.st_mtime), by.origins
                        ),
                        source=source.label,
                        undoes=undoes,
                        folders=len(folders),
                    )
                    return self._rename(change, (source, origin), (target, folder), found)
            except LookupError as error:
                raise ToolRetry(_none(source)) from error

    @contextmanager
    def _explain_refusal(self, number: int) -> Iterator[None]:
        """Say in a person's words why a change cannot be undone. Raises ToolFailed."""
        try:
            yield
        except ToolRetry as error:
            made = [one for one in self.journal.changes() if one.made]
            taken_back = {one.undoes for one in made}
            undone = next((one.id for one in made if one.undoes == number and one.id not in taken_back), None)
            if undone is not None:
                why = f"Change {number} is undone already; undo change {undone} to take that back."
            else:
                why = (
                    f"Change {number} cannot be undone: the file has been changed, moved or deleted since. "
                    "The list of changes says how; at the machine, "
                    f"`squidbot files undo {number} --force` undoes it anyway."
                )
            raise ToolFailed(why) from error

    def undo(self, number: int, *, by: ChangeAuthor, force: bool = False) -> FileChange:
        """Undo a change by a new one, with ``force`` over later changes. Raises LookupError or ToolError."""
        change = self.finish_change(self.journal.get(number))
        if not change.made:
            raise LookupError(f"change {number} was never made")
        place = self.roots.place(change.path, write=True)
        expected: Expected = ANYTHING if force else change.after
        with self._explain_refusal(number):
            if change.source is not None:
                back = self.roots.place(change.source, write=True)
                return self.move(place, back, by=by, kind="undo", expected=expected, undoes=number)
            content = None if change.before is None else self.journal.version(change.before)
            origins = None if content is None else self.origins_of(place, change.before)
            done = self.replace(
                place,
                lambda _: content,
                kind="undo",
                by=by,
                expected=expected,
                undoes=number,
                taken_over=origins,
                mode=change.mode,
            )
        if done is None:
            raise ToolFailed(f"{change.path!r} is already as it was before change {number}.")
        return done

    def made_by_commands(self, most: int) -> list[str]:
        """The files that commands have made or changed and that are still there, the newest first."""
        found: list[str] = []
        for path in self.journal.labels.newest():
            with suppress(ToolError, OSError):
                if len(found) < most and self.roots.is_there(self.roots.place(path)):
                    found.append(path)
        return found

    def finish_change(self, change: FileChange) -> FileChange:
        """The same change, noted as made if the file shows that it was: a kill can leave that open."""
        if change.made:
            return change
        with suppress(ToolError), self.journal.lock:
            place = self.roots.place(change.path)
            found = self.read_state(place)
            moved = change.source is not None and self.read_state(self.roots.place(change.source)) is not None
            if (found.digest if found else None) == change.after and not moved:
                return self.journal.record_completion(change)
        return change

    # ── inside ──

    def _found(self, place: RootedPath, folder: int, *, write: bool = False) -> FileState | None:
        try:
            handle = self.roots.open(place, folder, write=write)
        except LookupError:
            return None
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if status.st_size > MAX_FILE_BYTES:
                raise ToolFailed(
                    f"{place.label!r} has {status.st_size:,} bytes; files of more than {MAX_FILE_BYTES:,} "
                    "are only read in parts."
                )
            content = file.read(MAX_FILE_BYTES + 1)
        return FileState(content, digest_of(content), status)

    def _is_done(self, change: FileChange, found: FileState | None) -> bool:
        """Return True if an interrupted change took effect. Raises ToolFailed if another interfered."""
        now = found.digest if found else None
        if now == change.after:
            return True
        if now == change.before and not change.made:
            return False
        raise ToolFailed(
            f"{change.path!r} was changed by somebody else while this was interrupted; read it again."
        )

    def _intended(  # noqa: PLR0917 - made in one place
        self,
        place: RootedPath,
        kind: ChangeKind,
        by: ChangeAuthor,
        found: FileState | None,
        new: bytes | None,
        mode: int,
        undoes: int | None,
        taken_over: Origins | None,
    ) -> FileChange:
        origins = by.origins if taken_over is None else taken_over
        if kind == "edit" and found is not None:
            origins = join_origins(origins, self.origins_of(place, found.digest, found.status.st_mtime))
        return by.change(
            kind,
            place.label,
            before=found.digest if found else None,
            after=None if new is None else digest_of(new),
            mode=stat.S_IMODE(found.status.st_mode) if found else mode,
            origins=origins,
            undoes=undoes,
        )

    def _make(
        self, change: FileChange, place: RootedPath, folder: int, found: FileState | None, new: bytes | None
    ) -> FileChange:
        """Note it, make it, note that it was made."""
        if new is not None and found is None:
            _refuse_namesake(place, folder)
        handles: list[int] = []
        if change.id == 0:
            change, handles = self.journal.begin(change, found.content if found else None)
        temporary = f"{_TEMPORARY[0]}{change.id}{_TEMPORARY[1]}"
        try:
            try:
                if new is not None:
                    handles.append(_written(temporary, folder, new, change.mode))
            finally:
                self.journal.sync(handles)
            _refuse_changed(place, folder, found)
            if new is None:
                os.unlink(place.name, dir_fd=folder)
            else:
                os.rename(temporary, place.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            self.journal.void(change)
            raise
        return self._finish(change, folder)

    def _rename(
        self,
        change: FileChange,
        source: tuple[RootedPath, int],
        target: tuple[RootedPath, int],
        found: FileState,
    ) -> FileChange:
        (from_place, origin), (to_place, folder) = source, target
        handles: list[int] = []
        if change.id == 0:
            change, handles = self.journal.begin(change, None)
        temporary = f"{_TEMPORARY[0]}{change.id}{_TEMPORARY[1]}"
        try:
            self.journal.sync(handles)
            _refuse_changed(from_place, origin, found)
            _refuse_changed(to_place, folder, None)
            try:
                os.rename(from_place.name, to_place.name, src_dir_fd=origin, dst_dir_fd=folder)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self.journal.sync([_written(temporary, folder, found.content, change.mode)])
                os.rename(temporary, to_place.name, src_dir_fd=folder, dst_dir_fd=folder)
                try:
                    os.unlink(from_place.name, dir_fd=origin)
                except OSError:
                    os.unlink(to_place.name, dir_fd=folder)  # the copy: nothing is to be changed
                    raise
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            self.journal.void(change)
            raise
        self._sync_folder(origin)
        return self._finish(change, folder)

    def _finish(self, change: FileChange, folder: int) -> FileChange:
        with suppress(OSError):
            os.unlink(f"{_TEMPORARY[0]}{change.id}{_TEMPORARY[1]}", dir_fd=folder)
        done = change if change.made else self.journal.record_completion(change)
        self._sync_folder(folder)
        return done

    def _sync_folder(self, folder: int) -> None:
        # The handle on a folder is for walking only; the disk wants one for reading.
        with suppress(OSError):  # it is done already: what is told must not be that it was not
            self.journal.sync([os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)])


def _none(place: RootedPath) -> str:
    return f"There is no {place.label!r}; list_files shows what there is."


def _differs(found: FileState | None, new: bytes | None) -> bool:
    return (found.content if found else None) != new


def _is_moved(change: FileChange, found: FileState | None, there: FileState | None) -> bool:
    """Return True if an interrupted move took place. Raises ToolFailed if another writer interfered."""
    at = there.digest if there else None
    if at == change.after and (found is None or found.digest == change.after):
        return True
    if at is None and found is not None and found.digest == change.after and not change.made:
        return False
    raise ToolFailed(
        f"{change.path!r} was changed by somebody else while this was interrupted; look with list_files."
    )


def check_expected_content(
    place: RootedPath, found: FileState | None, expected: Expected, approved: str = ""
) -> None:
    """Refuse by a `ToolRetry` if a file holds something else than a call relies on, or than was approved."""
    now = found.digest if found else None
    if approved and approved != state_of(found):
        raise ToolRetry(f"{place.label!r} has changed since this was approved; read it with read_file.")
    if expected in (ANYTHING, now):
        return
    if now is None:
        raise ToolRetry(f"{place.label!r} no longer exists; list_files shows what there is.")
    if expected is None:
        raise ToolRetry(f"{place.label!r} already exists; read it with read_file before you change it.")
    raise ToolRetry(f"{place.label!r} has changed since you read it; read it again with read_file.")


def _refuse_namesake(place: RootedPath, folder: int, *, but: str = "") -> None:
    """Refuse a new name that differs from another only in case: elsewhere they would be one file."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(handle) as entries:
            mine = place.name.casefold()
            for entry in entries:
                if entry.name.casefold() == mine and entry.name not in (place.name, but):
                    raise ToolRetry(f"{entry.name!r} already exists and differs only in case; use that name.")
    finally:
        os.close(handle)


def _refuse_changed(place: RootedPath, folder: int, found: FileState | None) -> None:
    """Refuse a name that does not stand for the very file that was read any more."""
    try:
        now = os.stat(place.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if (None if now is None else _marks(now)) != (None if found is None else _marks(found.status)):
        raise ToolFailed(f"{place.label!r} is being changed by somebody else; read it again.")


def _marks(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _written(name: str, folder: int, content: bytes, mode: int) -> int:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        write_all(handle, content)
        os.fchmod(handle, mode & 0o777)
    except BaseException:
        os.close(handle)
        raise
    return handle


_SAID = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "this user may not",
    errno.EPERM: "this user may not",
    errno.EISDIR: "it is a folder",
    errno.ENAMETOOLONG: "the name is too long",
}


@contextmanager
def _explain_errors(place: RootedPath) -> Iterator[None]:
    """Turn an OSError into a sentence for the model. Raises ToolFailed."""
    try:
        yield
    except OSError as error:
        why = _SAID.get(error.errno or 0, error.strerror or "the system refused it")
        raise ToolFailed(f"{place.label!r}: {why}; nothing was changed.") from error
