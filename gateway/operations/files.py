"""
Operations on files that the assistant has changed: list, compare, undo, trust.

`FilesAtHome` makes the `JournaledFiles` of a home when they are first needed; the daemon's tools and commands
share them, and nothing of it is imported before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import structlog

from agent_core.errors import ToolError
from agent_core.messages import SessionKey
from agent_core.provenance import describe
from gateway.errors import GatewayError, NotFound
from gateway.operations.arguments import within
from gateway.queue.model import EffectReceipt
from gateway.queue.stores import Queue
from gateway.routing.access import Access
from gateway.settings import Settings
from gateway.system.home import Home

if TYPE_CHECKING:
    from agent_core.ports import Clock
    from agent_core.tools.files.change_journal import FileChange
    from agent_core.tools.files.journaled_files import JournaledFiles

_NAMES_TRIED = 20
_PROMPT = SessionKey("terminal", "squidbot trust file")
_SOMEBODY = "somebody at the prompt"
_LASTS = "persist"
"""`agent_core.tools.effects.Effect.PERSIST`, which is not loaded before tools are."""
_log = structlog.get_logger(__name__)


class UndoRefused(GatewayError):
    """The change cannot be undone."""

    exit_code = 1


class NotTrusted(GatewayError):
    """The file was not marked as the owner's own words."""

    exit_code = 1


class FilesAtHome:
    """The files of one home, opened when they are first needed."""

    def __init__(self, settings: Settings, home: Home, clock: Clock) -> None:
        self._settings = settings
        self._home = home
        self._clock = clock
        self._made_files: JournaledFiles | None = None

    def __call__(self) -> JournaledFiles:
        """Return the files, opened at the first use."""
        if self._made_files is None:
            self._made_files = self._made()
        return self._made_files

    @property
    def more(self) -> dict[Path, bool]:
        """The further folders, and whether they may be changed."""
        roots = self._settings.tools.files.roots
        return {self._home.path(path): mode == "rw" for path, mode in roots.items()}

    def _made(self) -> JournaledFiles:
        from agent_core.tools.files.change_journal import ChangeJournal  # noqa: PLC0415 - not before it is used
        from agent_core.tools.files.journaled_files import JournaledFiles  # noqa: PLC0415
        from agent_core.tools.files.roots import Roots  # noqa: PLC0415

        settings, home = self._settings, self._home
        source = settings.source
        private = [home.config_file, *(source.files if source else ())]
        private += [path for path in (settings.path, os.environ.get("CREDENTIALS_DIRECTORY")) if path]
        roots = Roots(
            home.path(settings.agents.workspace),
            self.more,
            home=home.root,
            private=[Path(path) for path in private],
        )
        journal = ChangeJournal(
            home.state("files"),
            now=self._clock.now,
            keep_days=settings.tools.files.keep_days,
            durable=settings.gateway.durability == "full",
        )
        return JournaledFiles(roots, journal)


class FileOperations:
    """The part of `gateway.operations.service.Operations` that is about files."""

    _store: Queue
    _access: Access
    _files: Callable[[], JournaledFiles] | None

    async def files_history(self, path: str | None = None, limit: int = 50) -> dict[str, Any]:
        """Changes of files, newest first."""
        limit = within(limit)

        def look() -> dict[str, Any]:
            files = self._made_files()
            changes = [files.finish_change(change) for change in files.journal.changes(path)[:limit]]
            made = files.made_by_commands(limit) if path is None else []
            return {"changes": [_row(change) for change in changes], "made_by_commands": made}

        return await anyio.to_thread.run_sync(look)

    async def files_diff(self, id: int) -> dict[str, Any]:  # noqa: A002 - the word that people type
        """The difference that one change made."""

        def look() -> dict[str, Any]:
            files = self._made_files()
            change = files.finish_change(_found(files, id))
            return {**_row(change), "diff": _diff(files, change)}

        return await anyio.to_thread.run_sync(look)

    async def files_undo(self, id: int, force: bool = False) -> dict[str, Any]:  # noqa: A002, FBT001, FBT002
        """Undo a change, as a new change; ``force``: also if the file was changed since."""
        from agent_core.tools.files.journaled_files import By  # noqa: PLC0415

        def undo() -> dict[str, Any]:
            files = self._made_files()
            _found(files, id)
            try:
                done = files.undo(id, by=By(session="squidbot files undo"), force=force)
            except LookupError as error:
                raise NotFound(str(error)) from error
            except ToolError as error:
                raise UndoRefused(str(error)) from error
            return _row(done)

        return await anyio.to_thread.run_sync(undo)

    async def files_trust(self, path: str) -> dict[str, Any]:
        """Mark the present content of a file as the owner's own words; other content is not marked."""

        def trust() -> dict[str, Any]:
            files = self._made_files()
            try:
                place = files.roots.place(path)
                found = files.read_state(place)
            except ToolError as error:
                raise NotTrusted(str(error)) from error
            if found is None:
                raise NotFound(f"there is no file {place.label}")
            try:
                files.journal.labels.trust(place.label, found.digest)
            except OSError as error:
                raise NotTrusted("the disk accepts no writes at the moment") from error
            _log.info("file.trusted", path=place.label, sha256=found.digest)
            return {"path": place.label, "bytes": len(found.content), "sha256": found.digest}

        receipt = EffectReceipt(
            _PROMPT, "trust_file", _LASTS, {"path": path}, asked_by=self._access.owner or _SOMEBODY
        )
        noted = await self._store.receipts.begin(receipt)
        try:
            done = await anyio.to_thread.run_sync(trust)
        except GatewayError as error:
            await self._store.receipts.finish(noted, str(error), failed=True)
            raise
        told = f"{done['path']} as it is now ({done['bytes']} bytes, SHA-256 {done['sha256']})"
        await self._store.receipts.finish(noted, told, failed=False)
        return done

    def _made_files(self) -> JournaledFiles:
        if self._files is None:
            raise NotFound("no file changes are recorded here")
        return self._files()


FILE_OPERATIONS = ("files_history", "files_diff", "files_undo", "files_trust")


def _found(files: JournaledFiles, number: int) -> FileChange:
    try:
        return files.journal.get(number)
    except LookupError as error:
        raise NotFound(f"{error}; `squidbot files history` lists the changes") from error


def _row(change: FileChange) -> dict[str, Any]:
    return {
        "id": change.id,
        "at": change.at.isoformat(),
        "what": change.kind,
        "path": change.path,
        "from": change.source,
        "made": change.made,
        "turn": change.turn,
        "session": change.session,
        "origins": describe(change.origins),
        "undoes": change.undoes,
    }


def _diff(files: JournaledFiles, change: FileChange) -> str:
    from agent_core.tools.files.reading import diff_text  # noqa: PLC0415

    if change.source is not None:
        return f"{change.source} became {change.path}"
    try:
        before = None if change.before is None else files.journal.version(change.before)
        after = None if change.after is None else _content(files, change.after)
    except LookupError as error:
        raise NotFound(f"change {change.id} cannot be shown: {error}") from error
    return diff_text(before, after, change.path)


def _content(files: JournaledFiles, digest: str) -> bytes:
    """A content that is kept, or still that of a file, be it under another name by now."""
    try:
        return files.journal.version(digest)
    except LookupError:
        paths = dict.fromkeys(change.path for change in files.journal.changes() if change.after == digest)
        for path in islice(paths, _NAMES_TRIED):
            with suppress(ToolError):
                found = files.read_state(files.roots.place(path))
                if found is not None and found.digest == digest:
                    return found.content
        raise
