"""Operations on memory documents: text, versions, undo, write."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from difflib import unified_diff
from typing import Annotated, Any

from agent_core.errors import MemoryConflict
from agent_core.operation import Option, operation
from gateway.errors import GatewayError, NotFound
from gateway.operations import render
from gateway.operations.operation_arguments import parse_scope, show_scope
from gateway.operations.operation_context import OperationContext
from gateway.system.terminal_text import plain_line

Scope = Annotated[str, Option(help="owner, person:ADDRESS or room:SESSION.")]
_OWNER = "owner"
_NEEDS = ("home", "settings")


class NotCurrent(GatewayError):
    """The document has a newer version than the one that was to be replaced."""

    exit_code = 1


def _scopes_text(answer: Mapping[str, Any]) -> str:
    return "\n".join(map(plain_line, answer["scopes"])) or "nothing is remembered yet"


@operation("memory list", writes=False, needs=_NEEDS, render=_scopes_text)
async def list_memories(context: OperationContext) -> dict[str, Any]:
    """List the memory documents."""
    return {"scopes": sorted(show_scope(scope) for scope in await context.memory.memory_scopes())}


@operation(
    "memory show", writes=False, needs=_NEEDS, render=lambda one: one["text"] or "this memory is empty"
)
async def show_memory(context: OperationContext, scope: Scope = _OWNER) -> dict[str, Any]:
    """Show a memory document."""
    where = parse_scope(scope)
    document = await context.memory.load_global_memory(where)
    if document.version == 0 and scope != _OWNER:
        raise await _never_written(context, scope)
    return {"scope": scope, "version": document.version, "text": document.text}


@operation("memory history", writes=False, needs=_NEEDS, render=render.memory_versions)
async def show_versions(context: OperationContext, scope: Scope = _OWNER) -> dict[str, Any]:
    """Show the versions of a memory document."""
    where = parse_scope(scope)
    versions = await context.memory.memory_versions(where)
    if not versions and scope != _OWNER:
        raise await _never_written(context, scope)
    return {
        "scope": scope,
        "versions": [
            {
                "version": document.version,
                "written_at": written_at.isoformat(),
                "session": session,
                "turn": turn,
                "text": document.text,
            }
            for document, written_at, session, turn in versions
        ],
    }


@operation("memory diff", writes=False, needs=_NEEDS, render=render.memory_diff)
async def compare_versions(
    context: OperationContext, scope: Scope = _OWNER, *, older: int | None = None, newer: int | None = None
) -> dict[str, Any]:
    """
    Show the differences between two versions of a memory document.

    Args:
        older: The older version (default: the one before the newer).
        newer: The newer version (default: the current one).
    """
    where = parse_scope(scope)
    texts = {0: ""} | {
        document.version: document.text for document, *_ in await context.memory.memory_versions(where)
    }
    last = (await context.memory.load_global_memory(where)).version
    if last == 0 and scope != _OWNER:
        raise await _never_written(context, scope)
    new = last if newer is None else newer
    old = max(0, new - 1) if older is None else older
    for wanted in (old, new):
        if wanted not in texts:
            known = ", ".join(str(number) for number in sorted(texts))
            raise NotFound(f"there is no version {wanted} of this memory; known: {known}")
    lines = unified_diff(
        texts[old].splitlines(), texts[new].splitlines(), f"version {old}", f"version {new}", lineterm=""
    )
    return {"scope": scope, "older": old, "newer": new, "diff": list(lines)}


def _undone_text(answer: Mapping[str, Any]) -> str:
    told = f"version {answer['restored']} is back" if answer["restored"] else "the memory is empty again"
    return f"{told}, as version {answer['version']}"


@operation(
    "memory undo",
    writes=True,
    needs=_NEEDS,
    render=_undone_text,
    done="The version before is restored.",
)
async def undo_memory(
    context: OperationContext, scope: Scope = _OWNER, *, to: int | None = None
) -> dict[str, Any]:
    """
    Restore an earlier version of a memory document, as a new version.

    Args:
        to: The version (default: the one before the current one).
    """
    where = parse_scope(scope)
    current = await context.memory.load_global_memory(where)
    if current.version == 0:
        raise await _never_written(context, scope)
    texts = {0: ""} | {
        document.version: document.text for document, *_ in await context.memory.memory_versions(where)
    }
    wanted = current.version - 1 if to is None else to
    if wanted not in texts:
        known = ", ".join(str(number) for number in sorted(texts))
        raise NotFound(f"there is no version {wanted} of this memory; known: {known}")
    document = await context.memory.save_global_memory(where, texts[wanted], base_version=current.version)
    return {"scope": scope, "version": document.version, "restored": wanted, "text": document.text}


def _written_text(answer: Mapping[str, Any]) -> str:
    told = f"written, as version {answer['version']}"
    if answer["text"].strip():
        return told
    undo = f"squidbot memory undo {shlex.quote(answer['scope'])}"  # a pipe has failed, more often than not
    return f"the memory is empty now, {told}; `{undo}` brings the text back"


@operation("memory write", writes=True, needs=_NEEDS, reads="text", render=_written_text, done="Saved.")
async def write_memory(
    context: OperationContext, scope: Scope = _OWNER, *, text: str, version: int | None = None
) -> dict[str, Any]:
    """
    Replace a memory document by the text on standard input; the text before stays a version.

    Args:
        text: The text, in place of the standard input.
        version: Write only if this is the current version.
    """
    where = parse_scope(scope)
    try:
        document = await context.memory.save_global_memory(where, text, base_version=version)
    except MemoryConflict as error:
        raise NotCurrent(
            f"nothing was written: the memory {scope} has changed and is at version "
            f"{error.current_version} now; read it again (squidbot memory show), then write"
        ) from error
    return {"scope": scope, "version": document.version, "text": document.text}


async def _never_written(context: OperationContext, scope: str) -> NotFound:
    known = ", ".join((await list_memories(context))["scopes"]) or "none yet"
    return NotFound(f"there is no memory {scope}; the memories are: {known}")
