"""Finding what was said earlier: what is in the way of files, and the tool. The promises are in tests/contract/search.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind
from agent_core.tools.search_history import SearchHistoryTool
from tests.search_house import BOB, OWNER, A, B, House, complete_house

ROOM = MemoryScope(ScopeKind.ROOM, "matrix/!room")


@pytest.fixture(params=["indexed", "unread"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Everything must be found alike, whether it is in the index or not yet."""
    async with complete_house(tmp_path, indexed=request.param == "indexed") as house:
        yield house


async def test_debris_is_passed_over(house: House) -> None:
    """Torn lines, binary, tools and empty messages hide nothing."""
    await house.say(A, "tea one")
    path = house.memory.layout.history(SessionKey.parse(A))
    with path.open("ab") as file:
        file.write(
            b'{"torn\n\xff\xfe\x00\n[]\n{"role":"tool","content":"tea tool","scope":"owner"}\n{"role":"user","content":7}\n'
        )
    await house.say(A, " ", "well", "so", "tea two")
    assert await house.found("tea") == ["tea two", "tea one"]


async def test_a_clock_that_went_back_and_missing_times(house: House) -> None:
    """Equal and missing times are no trouble; everything is found."""
    path = house.memory.layout.history(SessionKey.parse(A))
    path.parent.mkdir(parents=True)
    path.write_text(
        "".join(f'{{"role":"user","content":"tea {number}","scope":"owner"}}\n' for number in range(30))
    )
    await house.say(A, "tea late")
    house.clock.advance(-10 * 86_400)
    await house.say(A, "tea early")
    assert len(await house.found("tea", max_results=100)) >= 11
    assert "tea early" in str(await house.index.search(OWNER, "early"))


@pytest.fixture
async def plain(tmp_path: Path) -> Any:
    house = House(tmp_path)
    yield house
    await house.index.aclose()


# ── the tool ──


async def run(house: House, scope: MemoryScope = OWNER, session: str = A, **arguments: Any) -> Any:
    return await SearchHistoryTool(house.index, session, scope=scope, clock=house.clock).execute(**arguments)


async def test_the_tool_tells_who_when_and_where(plain: House) -> None:
    """Hits stand between tags that they cannot close, with time and place, the message itself marked."""
    await plain.say(A, "before", "the </found> tea", "after")
    await plain.say(B, "tea elsewhere")
    result = await run(plain, query="tea")
    assert not result.is_error
    assert result.content.lower().count("</found>") == 2
    first, second = result.content.split("</found>\n")
    assert B in first and "> you: tea elsewhere" in first
    assert "this conversation" in second and "> you: the" in second and "  @x:hs: before" in second
    assert "UTC" in first


async def test_the_tool_takes_what_a_model_may_write(plain: House) -> None:
    """Odd numbers are brought into range, a query without a word is refused, no hit is said."""
    await plain.say(A, *["tea", "x", "x"] * 30)
    assert (await run(plain, query="tea", max_results=10_000, days=10**9)).content.count("<found>") == 20
    assert (await run(plain, query="tea", max_results=-5)).content.count("<found>") == 1
    assert (await run(plain, query="tea", days=0)).content == "Nothing was found."
    assert (await run(plain, query="coffee")).content == "Nothing was found."
    for bad in ("", "  ", "!?", None, 7):
        assert (await run(plain, query=bad)).is_error


async def test_the_tool_cannot_be_talked_into_another_scope(plain: House) -> None:
    """No argument names a scope or a session."""
    await plain.say(A, "the owner's tea")
    tool = SearchHistoryTool(plain.index, B, scope=BOB, clock=plain.clock)
    assert set(tool.parameters["properties"]) == {"query", "days", "max_results"}
    assert (await tool.execute(query="tea", scope="owner")).content == "Nothing was found."
