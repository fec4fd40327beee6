"""The races of histories, records and documents: two processes change the same one at the same moment (`races.py`)."""

from __future__ import annotations

from typing import Any

from agent_core.errors import CursorMoved, MemoryConflict
from agent_core.models import MemoryScope, Message, ScopeKind
from tests.clock import EPOCH
from tests.contract.queue_data import ROOM, accept, answer, claim
from tests.contract.races import Race, Ran

OWNER = MemoryScope(ScopeKind.OWNER)
SESSION = str(ROOM)


def line(name: str) -> Message:
    return Message(role="user", content=name, id=name, timestamp=EPOCH, scope="owner")


async def nothing(_: Any) -> None:
    """Nothing is prepared."""


async def two_lines(queue: Any) -> None:
    await queue.memory.append_message(SESSION, line("x"), line("y"))


async def remembered(queue: Any) -> None:
    await two_lines(queue)
    await queue.memory.save_consolidation(SESSION, summary="old", cursor=1)
    await queue.memory.save_global_memory(OWNER, "one")


async def taken(queue: Any) -> Any:
    await accept(queue, "a")
    return await claim(queue)


async def whole(ran: Ran) -> list[str]:
    """The lines of the history, which both calls have written to, without a gap."""
    assert not ran.failed, ran.both
    tail = await ran.queue.memory.load_history(SESSION)  # type: ignore[attr-defined]
    assert tail.positions == tuple(range(tail.total))
    return sorted(each.content for each in tail.messages)


async def both_are_there(ran: Ran) -> None:
    assert await whole(ran) == ["a", "b"]


async def one_is_there(ran: Ran) -> None:
    assert await whole(ran) == ["a"]


async def all_are_there(ran: Ran) -> None:
    assert await whole(ran) == ["b", "text of a", "yes"]


async def one_has_consolidated(ran: Ran) -> None:
    assert [type(one) for one in ran.both if isinstance(one, Exception)] == [CursorMoved]
    memory = ran.queue.memory  # type: ignore[attr-defined]
    tail = await memory.load_history(SESSION)
    assert (tail.summary, tail.cursor) in (("one", 1), ("other", 2))


async def both_have_changed_the_record(ran: Ran) -> None:
    assert not ran.failed, ran.both
    tail = await ran.queue.memory.load_history(SESSION)  # type: ignore[attr-defined]
    assert (tail.summary, tail.cursor) == ("new", 2)


async def one_has_written(ran: Ran) -> None:
    assert [type(one) for one in ran.both if isinstance(one, Exception)] == [MemoryConflict]
    assert len(await ran.queue.memory.memory_versions(OWNER)) == 2  # type: ignore[attr-defined]


async def both_have_written(ran: Ran) -> None:
    assert not ran.failed, ran.both
    versions = await ran.queue.memory.memory_versions(OWNER)  # type: ignore[attr-defined]
    assert [document.version for document, *_ in versions] == [1, 2, 3]


def appends(*names: str) -> Any:
    return lambda queue, _: queue.memory.append_message(SESSION, *map(line, names))


def consolidates(summary: str, cursor: int) -> Any:
    return lambda queue, _: queue.memory.save_consolidation(
        SESSION, summary=summary, cursor=cursor, base_cursor=0
    )


def writes(text: str, base: int | None = None) -> Any:
    return lambda queue, _: queue.memory.save_global_memory(OWNER, text, base_version=base)


RACES = [
    Race("two appends", nothing, appends("a"), appends("b"), both_are_there),
    Race("the same line twice", nothing, appends("a"), appends("a"), one_is_there),
    Race(
        "a line and an answer", taken, lambda queue, turn: answer(queue, turn, "out"), appends("b"), all_are_there
    ),
    Race("two first summaries", two_lines, consolidates("one", 1), consolidates("other", 2), one_has_consolidated,
         guard="statement"),
    Race(
        "a summary and a cursor",
        remembered,
        lambda queue, _: queue.memory.save_session_summary(SESSION, "new"),
        lambda queue, _: queue.memory.save_consolidated_cursor(SESSION, 2),
        both_have_changed_the_record,
    ),
    Race("two on one version", remembered, writes("two", 1), writes("three", 1), one_has_written,
         guard="statement"),
    Race("two without a version", remembered, writes("two"), writes("three"), both_have_written),
]  # fmt: skip
