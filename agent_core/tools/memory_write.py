"""
The tool ``memory_write``: a model rewrites the memory document of its session's scope. The tool is made for
one run, with the session and the scope that were decided outside, so that no argument of a model chooses
whose memory is written. A write holds only against the version that the prompt showed: if another
conversation has written meanwhile, the model gets the current text and merges again. So a write that was cut
off by a crash can be made again: the second time it changes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from agent_core.errors import DocumentUnusable, MemoryConflict, StorageUnavailable
from agent_core.memory_ports import MemoryPort
from agent_core.models import MemoryScope, ScopeKind, ToolResult, tool_parameters
from agent_core.provenance import origins_of_call
from agent_core.tools.effects import Effect, Review, Wording

MAX_CHARS = 8000

_DESCRIPTION = (
    "Replace your long-term memory (MEMORY.md, '## Your Memory' in every prompt): lasting facts and what you "
    "are asked to remember, not what matters only now. Merge: give the whole document as Markdown bullets, "
    "under 300 words."
)
_SHARED = " It belongs to this room: everyone here can learn what is in it."


class MemoryWriteTool:
    """The tool ``memory_write`` of one run; ``shown_version`` is the prompt's, None if unknown."""

    name = "memory_write"
    effect = Effect.PERSIST
    repeatable = True

    def __init__(
        self,
        storage: MemoryPort,
        session_id: str,
        *,
        scope: MemoryScope = MemoryScope(ScopeKind.OWNER),  # noqa: B008 (a frozen constant)
        turn: str = "",
        shown_version: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.description = _DESCRIPTION + (_SHARED if scope.kind is ScopeKind.ROOM else "")
        self.parameters = tool_parameters("content", content="string")
        self._storage = storage
        self._session_id = session_id
        self._scope = scope
        self._turn = turn
        self._shown_version = shown_version
        self._seen_since: int | None = None

    def state(self) -> int | None:
        """The version that the model has seen, and that a write is therefore based on."""
        return self._seen_since if self._seen_since is not None else self._shown_version()

    def restore(self, state: int | None) -> None:
        """
        Go on from a `state` of an earlier start of this turn.

        A restarted turn has a new prompt with a newer document, but the calls that it takes up again were
        written in view of the old one; against the new version they would wipe what has come since.
        """
        self._seen_since = state

    def is_note(self, _: Mapping[str, Any]) -> bool:
        """Memory is shown with its origins."""
        return True

    async def wording(self, arguments: Mapping[str, Any]) -> Wording | None:
        """The lines that are new, if all others stay in their order."""
        try:
            document = await self._storage.load_global_memory(self._scope)
        except (DocumentUnusable, StorageUnavailable):
            return None
        before, after = (
            [line for line in text.splitlines() if line.strip()]
            for text in (document.text, str(arguments.get("content")))
        )
        # Below another heading a line says something else.
        known = set(before)
        stays = [line for line in after if line in known] == before
        if self.state() not in {None, document.version} or not stays:
            return None
        return Wording([line for line in after if line not in known], kept=document.origins)

    async def review(self, **arguments: Any) -> Review:
        """The difference, so that what would be lost is seen."""
        from agent_core.tools.files.file_reading import reviewed_change  # noqa: PLC0415 - only where somebody is asked

        new = str(arguments.get("content") or "")
        try:
            document = await self._storage.load_global_memory(self._scope)
        except (DocumentUnusable, StorageUnavailable) as error:
            return Review(f"The memory cannot be read now ({type(error).__name__}).\n{new}")
        after = new.encode("utf-8", "surrogatepass")
        before = document.text.encode()
        return Review(
            reviewed_change(before, after, "MEMORY.md"),
            str(document.version),
            changes_nothing=before == after,
        )

    async def execute(self, **arguments: Any) -> ToolResult:
        """Replace the document by ``content``."""
        content = arguments.get("content")
        if not isinstance(content, str):
            return _error("'content' must be the whole new document, as a string.")
        if len(content) > MAX_CHARS:
            return _error(
                f"Not saved: the document would have {len(content)} characters, {MAX_CHARS} is the "
                "limit. Condense it to about 300 words and call memory_write again."
            )
        try:
            document = await self._storage.save_global_memory(
                self._scope,
                content,
                base_version=self.state(),
                session_id=self._session_id,
                turn=self._turn,
                origins=origins_of_call(),
            )
        except MemoryConflict as conflict:
            self._seen_since = conflict.current_version
            text = (
                "Not saved: another conversation has changed the memory since you read it. This is the "
                "document now; merge your change into it and call memory_write again.\n\n"
                f"{conflict.current_text}"
            )
            return ToolResult(content=text, is_error=True, origins=conflict.origins)
        except DocumentUnusable:
            return _error("Not saved: the memory's file is not a regular file. The owner knows.")
        except StorageUnavailable:
            return _error("Not saved: the disk accepts no writes at the moment.")
        self._seen_since = document.version
        undo = f"squidbot memory undo {shlex.quote(str(self._scope))} --to {document.version - 1}"
        return ToolResult(content="Saved.", undo=undo)


def _error(text: str) -> ToolResult:
    return ToolResult(content=text, is_error=True)
