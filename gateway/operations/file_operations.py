"""Operations on files that the assistant has changed: list, compare, undo, trust."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from agent_core.errors import ToolError
from agent_core.language import _
from agent_core.operation import InChat, Who, operation
from gateway.errors import GatewayError, NotFound
from gateway.operations import render
from gateway.operations.operation_arguments import capped_limit
from gateway.operations.operation_context import OperationContext
from gateway.operations.render import chat_text
from gateway.system.terminal_text import plain_line

if TYPE_CHECKING:
    from agent_core.tools.files.change_journal import FileChange
    from agent_core.tools.files.journaled_files import JournaledFiles

_NEEDS = ("home", "settings")
_SOMEBODY = "somebody at the prompt"


class UndoRefused(GatewayError):
    """The change cannot be undone."""

    exit_code = 1


class NotTrusted(GatewayError):
    """The file was not marked as the owner's own words."""

    exit_code = 1


@operation(
    "files history",
    writes=False,
    needs=_NEEDS,
    render=render.file_changes,
    chats=[InChat("files", Who.OWNER, chat_text.changes_text, {"limit": 10})],
)
async def list_changes(
    context: OperationContext, path: str | None = None, *, limit: int = 50
) -> dict[str, Any]:
    """
    List the changes, newest first.

    Args:
        path: Only changes of this file, named as the assistant names it.
        limit: Maximum number of changes.
    """
    import anyio.to_thread

    limit = capped_limit(limit)

    def read() -> dict[str, Any]:
        files = _made_files(context)
        changes = [files.finish_change(change) for change in files.journal.changes(path)[:limit]]
        made = files.made_by_commands(limit) if path is None else []
        return {"path": path, "changes": [_row(change) for change in changes], "made_by_commands": made}

    return await anyio.to_thread.run_sync(read)


@operation("files diff", writes=False, needs=_NEEDS, render=lambda answer: str(answer["diff"]))
async def compare_change(context: OperationContext, id: int) -> dict[str, Any]:
    """
    Show the difference that a change made.

    Args:
        id: The change.
    """
    import anyio.to_thread

    def read() -> dict[str, Any]:
        files = _made_files(context)
        change = files.finish_change(_found(files, id))
        return {**_row(change), "diff": _diff(files, change)}

    return await anyio.to_thread.run_sync(read)


def _undone_text(answer: Mapping[str, Any]) -> str:
    return plain_line(f"{answer['path']} is as before change {answer['undoes']} (change {answer['id']})")


@operation(
    "files undo",
    writes=True,
    needs=_NEEDS,
    render=_undone_text,
    done="Undone, as a new change.",
    chats=[InChat("files undo NUMBER", Who.OWNER, chat_text.undo_text)],
)
async def undo_change(context: OperationContext, id: int, *, force: bool = False) -> dict[str, Any]:
    """
    Undo a change, as a new change that can itself be undone.

    Args:
        id: The change.
        force: Undo it even if the file has changed since.
    """
    import anyio.to_thread

    from agent_core.tools.files.journaled_files import ChangeAuthor

    def undo() -> dict[str, Any]:
        by, caller = ChangeAuthor(session="squidbot files undo"), context.caller
        if caller is not None:  # with a key a command that is done again after a crash undoes nothing twice
            by = ChangeAuthor(caller.turn, caller.session, f"{caller.turn}.undo")
        try:
            done = _made_files(context).undo(id, by=by, force=force)
        except LookupError as error:
            raise NotFound(_("not undone: {error}", error=error)) from error
        except ToolError as error:
            raise UndoRefused(_("not undone: {error}", error=error)) from error
        return _row(done)

    return await anyio.to_thread.run_sync(undo)


def _trusted_text(answer: Mapping[str, Any]) -> str:
    return plain_line(_trusted_what(answer))


def _trusted_what(answer: Mapping[str, Any]) -> str:
    if not answer["sha256"]:
        return f"the name {answer['path']} counts as your own words; what is in there does not"
    content = f"{answer['bytes']} bytes, SHA-256 {answer['sha256']}"
    return f"{answer['path']} as it is now ({content}) counts as your own words"


@operation("trust file", key="files_trust", writes=True, needs=_NEEDS, render=_trusted_text)
async def trust_file(context: OperationContext, path: str) -> dict[str, Any]:
    """
    Let what a file holds now count as the owner's own words, until it changes.

    Args:
        path: The file, named as the assistant names it.
    """
    import anyio.to_thread
    import structlog

    from agent_core.messages import SessionKey
    from agent_core.tools.effects import Effect
    from gateway.store.model import EffectReceipt

    def trust() -> dict[str, Any]:
        files = _made_files(context)
        try:
            place = files.roots.place(path)
            found = files.read_whole(place)
        except ToolError as error:
            raise NotTrusted(str(error)) from error
        if found is None:
            raise NotFound(_("there is no file {label}", label=place.label))
        try:
            files.journal.labels.trust(place.label, found.digest)
        except OSError as error:
            raise NotTrusted(_("the disk accepts no writes at the moment")) from error
        structlog.get_logger(__name__).info("file.trusted", path=place.label, sha256=found.digest)
        hashed = "" if found.is_name else found.digest
        return {"path": place.label, "bytes": len(found.content), "sha256": hashed}

    receipt = EffectReceipt(
        SessionKey("terminal", "squidbot trust file"),
        "trust_file",
        Effect.PERSIST.value,
        {"path": path},
        asked_by=context.access.owner or _SOMEBODY,
    )
    noted = await context.store.receipts.begin(receipt)
    try:
        done = await anyio.to_thread.run_sync(trust)
    except GatewayError as error:
        await context.store.receipts.finish(noted, str(error), failed=True)
        raise
    await context.store.receipts.finish(noted, _trusted_what(done), failed=False)
    return done


def _made_files(context: OperationContext) -> JournaledFiles:
    if context.files is None:
        raise NotFound(_("no file changes are recorded here"))
    return context.files()


def _found(files: JournaledFiles, number: int) -> FileChange:
    try:
        return files.journal.get(number)
    except LookupError as error:
        raise NotFound(f"{error}; `squidbot files history` lists the changes") from error


def _row(change: FileChange) -> dict[str, Any]:
    from agent_core.provenance import describe

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
    from agent_core.tools.files.file_reading import diff_text

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
        for path in islice(paths, 20):
            with suppress(ToolError):
                found = files.read_state(files.roots.place(path))
                if found is not None and found.digest == digest:
                    return found.content
        raise
