"""Finding what was said earlier: newest first, in one's own scope only, whatever is in the query or in the way."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage import JsonlMemory
from agent_core.storage.search_index import SearchIndex
from agent_core.storage.search_index.text import folded, parse_query
from agent_core.tools import SearchHistoryTool
from tests.clock import ManualClock
from tests.open_files import opened

OWNER = MemoryScope(ScopeKind.OWNER)
BOB = MemoryScope(ScopeKind.PERSON, "@bob:hs.test")
ROOM = MemoryScope(ScopeKind.ROOM, "matrix/!room")
A, B, R = "matrix/!a", "matrix/!b", "matrix/!room"


class House:
    """Histories and their index."""

    def __init__(self, home: Path) -> None:
        self.clock = ManualClock()
        self.home = home
        self.memory = JsonlMemory(home, clock=self.clock)
        self.index = self.opened()
        self.said = 0

    def opened(self) -> SearchIndex:
        return SearchIndex(self.home / "search.db", self.memory.layout)

    async def say(
        self, session: str, *texts: str, scope: MemoryScope | None = OWNER, days: float = 0.01
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
                ),
            )

    async def found(self, query: str, scope: MemoryScope = OWNER, **more: Any) -> list[str]:
        answer = await self.index.search(scope, query, **more)
        return [hit.messages[hit.at].content for hit in answer.hits]


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


# ── the index and its files ──


@pytest.fixture
async def plain(tmp_path: Path) -> Any:
    house = House(tmp_path)
    yield house
    await house.index.aclose()


async def test_a_closed_index_does_not_open_its_file_again(plain: House) -> None:
    """What comes late at the end of the program, a search or an update, finds it closed."""
    await plain.say(A, "the boiler is serviced in March")
    await plain.index.update_all()
    assert opened(plain.home)  # the control
    await plain.index.aclose()

    await plain.index.update_all()
    await plain.index.search(OWNER, "boiler")

    assert not opened(plain.home)


async def test_the_index_follows_and_survives_a_restart(plain: House) -> None:
    """What was read is not read again; what is new is found at once, and is in the index after an update."""
    await plain.say(A, "tea one")
    await plain.index.update(A)
    assert plain.index.state() == {"complete": True, "behind": 0}
    await plain.index.aclose()
    plain.index = plain.opened()
    await plain.say(A, "tea two")
    assert await plain.found("tea") == ["tea two", "tea one"]
    await plain.index.update_all()
    (hit,) = (await plain.index.search(OWNER, "tea")).hits
    assert len(hit.messages) == 2


@pytest.mark.parametrize("damage", ["gone", "garbage", "truncated", "other version", "folder"])
async def test_a_damaged_index_is_made_again(plain: House, damage: str) -> None:
    """Whatever became of its file: everything is found before and after the next update."""
    await plain.say(A, "tea one", *["filler"] * 50)
    await plain.index.update_all()
    await plain.index.aclose()
    path = plain.home / "search.db"
    for leftover in plain.home.glob("search.db-*"):
        leftover.unlink()
    match damage:
        case "gone":
            path.unlink()
        case "garbage":
            path.write_bytes(b"garbage " * 1000)
        case "truncated":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        case "other version":
            with sqlite3.connect(path) as db:
                db.execute("PRAGMA user_version = 99")
            db.close()
        case "folder":
            path.unlink()
            path.mkdir()
    plain.index = plain.opened()
    assert await plain.found("tea") == ["tea one"]
    await plain.index.update(A)
    assert await plain.found("tea") == ["tea one"]
    await plain.index.update(A)
    assert plain.index.state()["complete"] == (damage != "folder")


async def test_histories_that_are_replaced_or_removed(plain: House) -> None:
    """The index says what the files say."""
    await plain.say(A, "tea one", "tea two")
    await plain.say(B, "tea three")
    await plain.index.update_all()
    plain.memory.layout.history(SessionKey.parse(B)).unlink()
    path = plain.memory.layout.history(SessionKey.parse(A))
    lines = path.read_bytes().splitlines(keepends=True)
    path.unlink()
    path.write_bytes(lines[1])
    await plain.index.aclose()
    plain.index = plain.opened()
    await plain.index.update_all()
    assert await plain.found("tea") == ["tea two"]
    counts = await plain.index.rebuild()
    assert (counts["sessions"], counts["messages"], counts["complete"]) == (1, 1, True)


async def test_half_a_line_is_waited_for(plain: House) -> None:
    """A line in the middle of being written is read when it is whole, and only once."""
    await plain.say(A, "tea one")
    path = plain.memory.layout.history(SessionKey.parse(A))
    line = b'{"role":"user","content":"tea two","scope":"owner","n":1}\n'
    with path.open("ab") as file:
        file.write(line[:20])
    await plain.index.update_all()
    with path.open("ab") as file:
        file.write(line[20:])
    await plain.index.update(A)
    counts = await plain.index._written(lambda: plain.index._open_writer().counts())
    assert counts == (1, 2)


async def test_a_long_history_is_read_in_batches(plain: House) -> None:
    """More lines than one batch has are all read; a line over any limit is passed over."""
    await plain.say(A, *[f"word{number} tea" for number in range(1000)])
    path = plain.memory.layout.history(SessionKey.parse(A))
    with path.open("ab") as file:
        file.write(b"x" * (17 * 1024 * 1024) + b"\n")
    await plain.say(A, "the last tea")
    await plain.index.update_all()
    assert plain.index.state() == {"complete": True, "behind": 0}
    assert await plain.found("word3") == ["word3 tea"]
    assert (await plain.found("tea", max_results=1)) == ["the last tea"]


async def test_while_it_is_built_the_newest_are_found(plain: House) -> None:
    """Without an index a search looks as far back as its budget goes, and says that it was not all."""
    await plain.say(A, "oldest tea")
    for _ in range(12):
        await plain.say(A, *["some filler " * 500] * 10)
    await plain.say(A, "newest tea")
    answer = await plain.index.search(OWNER, "tea")
    assert [hit.messages[hit.at].content for hit in answer.hits] == ["newest tea"]
    assert not answer.complete
    await plain.index.update_all()
    answer = await plain.index.search(OWNER, "tea")
    assert len(answer.hits) == 2 and answer.complete


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


def test_folding() -> None:
    """Words and nothing else, the same for index and query."""
    assert folded("  Été — C'est  l’heure! ") == "ete c est l heure"
    assert parse_query('one "two  THREE" four-five').terms == ("one", "two three", "four five")
    assert parse_query("!!! --- ...").terms == ()
