"""Finding what was said earlier: what is in the way of files, and the tool. The promises are in tests/contract/search.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind
from agent_core.tools.search_history import SearchHistoryTool
from tests.search_house import BOB, OWNER, A, B, Harness, R, complete_house

ROOM = MemoryScope(ScopeKind.ROOM, "matrix/!room")


@pytest.fixture(params=["indexed", "unread"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Everything must be found alike, whether it is in the index or not yet."""
    async with complete_house(tmp_path, indexed=request.param == "indexed") as house:
        yield house


async def test_debris_is_passed_over(house: Harness) -> None:
    """Torn lines, binary, tools and empty messages hide nothing."""
    await house.say(A, "tea one")
    path = house.memory.layout.history(SessionKey.parse(A))
    with path.open("ab") as file:
        file.write(
            b'{"torn\n\xff\xfe\x00\n[]\n{"role":"tool","content":"tea tool","scope":"owner"}\n{"role":"user","content":7}\n'
        )
    await house.say(A, " ", "well", "so", "tea two")
    assert await house.found("tea") == ["tea two", "tea one"]


async def test_a_clock_that_went_back_and_missing_times(house: Harness) -> None:
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
    assert "tea early" in await house.found("early")


@pytest.fixture
async def plain(tmp_path: Path) -> Any:
    house = Harness(tmp_path)
    yield house
    await house.index.aclose()


# ── the tool ──


async def run(house: Harness, scope: MemoryScope = OWNER, session: str = A, **arguments: Any) -> Any:
    return await SearchHistoryTool(house.index, session, scope=scope, clock=house.clock).execute(**arguments)


async def test_the_tool_tells_who_when_and_where(plain: Harness) -> None:
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


async def test_the_tool_takes_what_a_model_may_write(plain: Harness) -> None:
    """Odd numbers are brought into range, a query without a word is refused, no hit is said."""
    await plain.say(A, *["tea", "x", "x"] * 30)
    assert (await run(plain, query="tea", max_results=10_000, days=10**9)).content.count("<found>") == 20
    assert (await run(plain, query="tea", max_results=-5)).content.count("<found>") == 1
    assert (await run(plain, query="tea", days=0)).content == "Nothing was found."
    assert (await run(plain, query="coffee")).content == "Nothing was found."
    for bad in ("", "  ", "!?", None, 7):
        assert (await run(plain, query=bad)).is_error


async def test_the_tool_cannot_be_talked_into_another_scope(plain: Harness) -> None:
    """No argument names a scope or a session."""
    await plain.say(A, "the owner's tea")
    tool = SearchHistoryTool(plain.index, B, scope=BOB, clock=plain.clock)
    assert set(tool.parameters["properties"]) == {"query", "days", "place", "person"}
    assert (await tool.execute(query="tea", scope="owner")).content == "Nothing was found."


async def test_the_tool_searches_a_place_or_a_person(plain: Harness) -> None:
    """By the name of a room, the address of a conversation, "here", and a part of a sender's address."""
    await plain.say(A, "tea here", "x", "x", "x")
    await plain.say(R, "tea in the kitchen", "x", scope=ROOM)
    await plain.say(R, "tea of the owner in the kitchen", "x")
    names = {R: "The Kitchen", A: "Alice"}
    for _ in ("in the histories", "in the index"):
        tool = SearchHistoryTool(
            plain.index, A, scope=OWNER, clock=plain.clock, room_name=lambda session: names.get(session, "")
        )

        async def found(tool: SearchHistoryTool = tool, **more: str) -> list[str]:
            told = (await tool.execute(query="tea", **more)).content
            return [line for line in told.splitlines() if line.startswith("> ")]

        kitchen, here = ["> @x:hs: tea of the owner in the kitchen"], ["> @x:hs: tea here"]
        assert await found(place="kitchen") == await found(place="!ROOM") == kitchen
        assert await found(place="here") == await found(place="alice") == here
        assert await found(place="cellar") == await found(person="bob") == []
        assert await found(person="@X") == await found(person="x hs") == here + kitchen
        await plain.index.update_all()


async def test_the_tool_shows_the_part_of_a_long_message_with_the_words(plain: Harness) -> None:
    """Of a message of any length, with the number of further hits, the best first."""
    filler = "we talked about this and that " * 100
    await plain.say(A, f"{filler} the blue tea pot {filler}", "x", *["tea", "x", "x"] * 9)
    told = (await run(plain, query="blue tea pot")).content
    assert "the blue tea pot" in told.split("</found>")[0]
    assert len(told) < 3000
    assert told.endswith("(5 more with some of the words.)")


async def test_while_the_index_is_filled_nothing_found_is_not_said(plain: Harness) -> None:
    """What was not looked through may have it."""
    await plain.say(A, "oldest tea")
    for _ in range(12):
        await plain.say(A, *["some filler " * 500] * 10)
    told = (await run(plain, query="tea")).content
    assert told.startswith("Nothing was found so far.")
    assert "still being filled" in told
    await plain.index.update_all()
    assert "oldest tea" in (await run(plain, query="tea")).content
