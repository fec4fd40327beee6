"""Histories and the index that finds what was said in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_core.memory_ports import SearchRequest
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage import JsonlMemory
from agent_core.storage.search_index import SearchIndex
from tests.clock import ManualClock

OWNER = MemoryScope(ScopeKind.OWNER)

BOB = MemoryScope(ScopeKind.PERSON, "@bob:hs.test")

A, B, R = "matrix/!a", "matrix/!b", "matrix/!room"


class Harness:
    """Histories and their index."""

    memory: Any
    index: Any

    def __init__(self, home: Path) -> None:
        self.clock = ManualClock()
        self.home = home
        self.said = 0
        self.memory = JsonlMemory(home, clock=self.clock, on_append=lambda name: self.index.note_growth(name))
        self.index = self.opened()

    def opened(self) -> SearchIndex:
        return SearchIndex(self.home / "search.db", self.memory.layout)

    async def say(
        self,
        session: str,
        *texts: str,
        scope: MemoryScope | None = OWNER,
        days: float = 0.01,
        **more: Any,
    ) -> None:
        for text in texts:
            self.clock.advance(days * 86_400)
            self.said += 1
            role = "user" if self.said % 2 else "assistant"
            told = None if scope is None else str(scope)
            await self.memory.append_message(
                session,
                Message(
                    role=role,
                    content=text,
                    id=str(self.said),
                    scope=told,
                    sender="@x:hs" if role == "user" else None,
                    **more,
                ),
            )

    async def found(self, query: str, scope: MemoryScope = OWNER, **more: Any) -> list[str]:
        answer = await self.index.search(SearchRequest(scope, query, **more))
        return [hit.messages[hit.at].content for hit in answer.hits]


@asynccontextmanager
async def complete_house(home: Path, *, indexed: bool) -> AsyncIterator[Harness]:
    """One whose searches find everything, in an index that is up to date or in files alone."""
    house = Harness(home)
    search = house.index.search

    async def up_to_date(asked: SearchRequest) -> Any:
        if indexed:
            await house.index.update_all()
        answer = await search(asked)
        assert answer.complete
        return answer

    house.index.search = up_to_date  # type: ignore[method-assign]
    yield house
    await house.index.aclose()
