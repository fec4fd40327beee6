"""
The Protocols of memory: histories with their summaries and cursors, memory documents, search. The comments
are contracts, as in `agent_core.ports`; ``tests/contract`` holds every implementation to them. Both ports are
called with the session's id, ``str(SessionKey)``, or with a scope.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from agent_core.models import HistoryTail, MemoryDocument, MemoryScope, Message, SearchAnswer, SearchHit
from agent_core.provenance import Origins


class MemoryPort(Protocol):
    """
    Histories, cursors, summaries and memory documents.

    The history is append-only. Writing may raise `StorageUnavailable`; reading never fails because of
    damaged content: what cannot be read is skipped, counted and reported.
    """

    async def load_history(
        self, session_id: str, *, max_messages: int | None = None, max_chars: int | None = None
    ) -> HistoryTail:
        """
        The newest messages after the cursor, oldest first, within both limits (None: no limit).

        Its cost depends on what is returned, not on the length of the history. At least the newest message
        is returned if there is one, however long. Characters are counted as by `budget.message_chars`.
        """
        ...

    async def load_segment(
        self, session_id: str, *, start: int, max_messages: int, max_chars: int | None = None
    ) -> HistoryTail:
        """
        The oldest messages from position ``start`` on, also those before the cursor; for export, search
        and consolidation. Cheap from anywhere, unless the lines were written before they had positions.

        At least one message is returned if there is one, however long. Characters as in `load_history`.
        """
        ...

    async def last_messages(self, session_ids: Sequence[str]) -> list[HistoryTail]:
        """The last message of each of these sessions, as by `load_history`, also one before the cursor."""
        ...

    async def append_message(self, session_id: str, *messages: Message, durable: bool = False) -> None:
        """
        Append, in order. A message whose id is among the recently appended ones is left out.

        With ``durable`` everything appended to the session so far, these messages and earlier ones, would
        survive a power cut when this returns: `sync_history` in the same visit. Without, it is durable at
        the latest after the next one.
        """
        ...

    async def sync_history(self, session_id: str) -> None:
        """Return when everything appended so far would survive a power cut."""
        ...

    async def load_global_memory(self, scope: MemoryScope) -> MemoryDocument:
        """The memory document of ``scope``; an empty one if there is none."""
        ...

    async def save_global_memory(
        self,
        scope: MemoryScope,
        text: str,
        *,
        base_version: int | None = None,
        session_id: str = "",
        turn: str = "",
        origins: Origins = (),
    ) -> MemoryDocument:
        """
        Replace the document atomically and keep the version before. Returns the new one.

        ``origins`` are kept with the version and come back with the document, until it is written anew or
        edited by hand.

        A document that already reads like this is returned as it is: saving again after a crash is harmless.

        Raises:
            MemoryConflict: ``base_version`` is given and is not the current version; nothing was changed.
        """
        ...

    async def memory_versions(self, scope: MemoryScope) -> list[tuple[MemoryDocument, datetime, str, str]]:
        """All versions, oldest first, each with time, session id and turn of its writing."""
        ...

    async def memory_scopes(self) -> list[MemoryScope]:
        """The scopes that have a document, in no particular order, as far as their names can be told."""
        ...

    async def load_session_summary(self, session_id: str) -> str:
        """The summary of the messages before the cursor, or an empty text."""
        ...

    async def save_session_summary(self, session_id: str, summary: str) -> None:
        """Replace the summary and leave the cursor."""
        ...

    async def load_consolidated_cursor(self, session_id: str) -> int:
        """Return the number of messages from the beginning that the summary covers; 0 if unknown."""
        ...

    async def save_consolidated_cursor(self, session_id: str, cursor: int) -> None:
        """Replace the cursor and leave the summary."""
        ...

    async def save_consolidation(
        self,
        session_id: str,
        *,
        summary: str,
        cursor: int,
        base_cursor: int | None = None,
        private: Collection[str] = (),
        origins: Origins = (),
    ) -> None:
        """
        Replace summary and cursor together: after a crash both are old or both are new.

        ``private`` and ``origins`` are kept with the summary and come back in `HistoryTail`.

        Raises:
            CursorMoved: ``base_cursor`` is given and is not the current cursor; nothing was changed.
        """
        ...

    async def sessions(self) -> list[str]:
        """Ids of all sessions that have a history, the one written to last first, as far as is known."""
        ...


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """
    A search in the messages of a scope.

    Args:
        query: Data: no character has a meaning of its own, except that words between double quotes must
            occur as they stand, one after the other.
        since: Nothing said before is found.
        place: Returns True for a session whose messages are searched; called in the event loop.
        person: Only senders in whose addresses each word of it begins a word.
        least: Messages worth less than this part of the best one are left out; twice this part where what
            means the same counts as well.
        waits: False: a part of the search that would have to start first is left out, as vectors are.
        neighbours: False: beside a message stands only the answer to it, or its question.
        pick: Pure; yields some of the hits, the best first. It is called in another thread, and a hit is read
            when it is asked for.
    """

    scope: MemoryScope
    query: str
    since: datetime | None = None
    place: Callable[[str], bool] | None = None
    person: str = ""
    least: float = 0.0
    max_results: int = 10
    waits: bool = True
    neighbours: bool = True
    pick: Callable[[Iterator[SearchHit]], Iterator[SearchHit]] = lambda hits: hits


class SearchPort(Protocol):
    """
    Search in the histories of one scope.

    What is found depends on the scope alone: messages whose turn had it (`Message.scope`). A message that
    does not say whose it is is found by nobody.
    """

    async def search(self, asked: SearchRequest) -> SearchAnswer:
        """
        Messages with words of the query, the best first: rare words count more than common ones, forms of a
        word a little less than the word itself.

        Never fails because of a damaged index: then it looks through the newest messages.
        """
        ...


class SearchIndexPort(SearchPort, Protocol):
    """A search whose index somebody must keep up to date. No method fails because of the index."""

    async def update(self, session_id: str) -> None:
        """Index what is new in one history."""
        ...

    async def update_all(self) -> None:
        """Index what is new in all histories, and forget those that are gone."""
        ...

    async def rebuild(self) -> dict[str, Any]:
        """Rebuild the index. Returns `state`, and how many sessions and messages can be searched."""
        ...

    def state(self) -> dict[str, Any]:
        """Return ``complete`` (all is indexed) and ``behind`` (the number of sessions that are not)."""
        ...

    async def aclose(self) -> None:
        """Close the index for good."""
        ...
