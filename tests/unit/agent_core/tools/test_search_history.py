"""Finding what was said earlier: newest first, in one's own scope only, whatever is in the query or in the way."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind
from agent_core.tools.search_history import SearchHistoryTool
from tests.search_house import BOB, OWNER, A, B, House, R

ROOM = MemoryScope(ScopeKind.ROOM, "matrix/!room")


@pytest.fixture(params=["indexed", "unread"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Everything must be found alike, whether it is in the index or not yet."""
    house = House(tmp_path)
    search = house.index.search

    async def up_to_date(*arguments: Any, **named: Any) -> Any:
        if request.param == "indexed":
            await house.index.update_all()
        answer = await search(*arguments, **named)
        assert answer.complete
        return answer

    house.index.search = up_to_date  # type: ignore[method-assign]
    yield house
    await house.index.aclose()


async def test_newest_first_over_all_sessions(house: House) -> None:
    """The newest message stands first, whichever conversation it is in."""
    await house.say(A, "tea one", "nothing")
    await house.say(B, "tea two", "nothing")
    await house.say(A, "nothing", "tea three")

    assert await house.found("tea") == ["tea three", "tea two", "tea one"]
    assert await house.found("tea", max_results=2) == ["tea three", "tea two"]
    assert await house.found("tea", max_results=0) == []


async def test_only_so_many_days_back(house: House) -> None:
    """What is older than ``since`` is not found."""
    await house.say(A, "tea one", "x", "tea two", "x", "tea three", days=1)
    since = house.clock.now() - timedelta(days=2)
    assert await house.found("tea", since=since) == ["tea three", "tea two"]


async def test_a_hit_comes_with_its_neighbours(house: House) -> None:
    """The message before and the one after; hits side by side are shown once."""
    await house.say(A, "before", "the tea", "after", "more")
    (hit,) = (await house.index.search(OWNER, "tea")).hits
    assert ([message.content for message in hit.messages], hit.at) == (["before", "the tea", "after"], 1)
    await house.say(A, "tea again", "tea still")
    hits = (await house.index.search(OWNER, "tea")).hits
    assert [[message.content for message in hit.messages] for hit in hits] == [
        ["tea again", "tea still"],
        ["before", "the tea", "after"],
    ]


async def test_nobody_finds_what_another_one_said(house: House) -> None:
    """Owner, person and room see their own, neighbours included, also when a conversation changes hands."""
    await house.say(A, "the secret of the owner")
    await house.say(B, "the secret of bob", scope=BOB)
    await house.say(R, "the secret of the room", scope=ROOM)
    await house.say(R, "the owner alone had a secret here", scope=OWNER)
    await house.say(R, "the room again without a secret", scope=ROOM)
    await house.say(A, "a secret of nobody", scope=None)

    assert await house.found("secret") == ["the owner alone had a secret here", "the secret of the owner"]
    assert await house.found("secret", BOB) == ["the secret of bob"]
    (hit,) = (await house.index.search(ROOM, "secret")).hits
    assert [each.content for each in hit.messages] == [
        "the secret of the room",
        "the room again without a secret",
    ]
    for scope in (OWNER, BOB, ROOM, MemoryScope(ScopeKind.PERSON, "@eve:hs")):
        shown = {
            each.content for hit in (await house.index.search(scope, "secret")).hits for each in hit.messages
        }
        own = {OWNER: "owner", BOB: "bob", ROOM: "room"}.get(scope, "nobody at all")
        assert all(own in text for text in shown)
    assert await house.found("secret", MemoryScope(ScopeKind.PERSON, "@eve:hs")) == []


@pytest.mark.parametrize(
    "query",
    [
        'a" OR 1',
        "NEAR(tea, 2)",
        "tea*",
        "-tea",
        "^tea",
        "text : tea",
        '{text} : "tea"',
        "'; DROP TABLE lines; --",
        "scope:owner",
        '"',
        '""',
        "(",
        "tea AND NOT x",
        "%",
        "\x00tea",
        "tea" * 400,
        " ".join(["tea"] * 300),
    ],
)
async def test_special_characters_are_data(house: House, query: str) -> None:
    """No query is an error, and none reaches another scope."""
    await house.say(A, "some tea here")
    await house.say(B, "some tea there", scope=BOB)

    assert set(await house.found(query)) <= {"some tea here"}
    assert await house.found("tea") == ["some tea here"]


@pytest.mark.parametrize(
    ("text", "query", "hits"),
    [
        ("Ünïque Straße", "unique STRASSE", True),
        ("the blue door", '"blue door"', True),
        ("the door is blue", '"blue door"', False),
        ("the door is blue", "blue door", True),
        ("several meetings", "meeting", True),
        ("several meetings", "me", False),
        ("mail bob@hs.test today", "bob@hs.test", True),
        ("猫が好きです", "好き", True),
        ("猫が好きです", "犬", False),
        ("well-known", "well known", True),
        ("price 1,250", "1,250", True),
    ],
)
async def test_what_counts_as_the_same(house: House, text: str, query: str, hits: bool) -> None:
    """Case and accents do not, order only inside quotation marks; beginnings count where words find nothing."""
    await house.say(A, text)
    assert (await house.found(query) == [text]) == hits


async def test_whole_words_win_over_beginnings(house: House) -> None:
    """Beginnings are looked for only where no whole word was found."""
    await house.say(A, "a meeting", "x", "x", "some meetings")
    assert await house.found("meeting") == ["a meeting"]


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
