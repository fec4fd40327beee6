"""The index of what was said and its files: it follows the histories, and is made again when it is of no use."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.memory_ports import SearchRequest
from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.provenance import untrusted_origin
from agent_core.storage.history_lines import to_line
from agent_core.storage.search_index.index_rows import Rows, SearchLine
from agent_core.storage.search_index.word_splitting import Filters, fold, parse_query
from tests.open_files import opened
from tests.search_house import BOB, OWNER, A, B, Harness

OLDER = """
CREATE TABLE scopes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    inode INTEGER NOT NULL, position INTEGER NOT NULL, byte INTEGER NOT NULL, last_ms INTEGER NOT NULL
);
CREATE TABLE lines (
    id INTEGER PRIMARY KEY, session INTEGER NOT NULL, position INTEGER NOT NULL, scope INTEGER NOT NULL,
    role TEXT NOT NULL, sender TEXT, text TEXT NOT NULL, origins TEXT, turn TEXT, msg_id TEXT
);
CREATE VIRTUAL TABLE words USING fts5(text, scope, content='', columnsize=0);
INSERT INTO scopes VALUES (1, 'owner');
PRAGMA user_version = 5;
"""
"""As the index was before, with a scope and no line yet: whoever trusts it finds nothing."""


@pytest.fixture
async def plain(tmp_path: Path) -> Any:
    house = Harness(tmp_path)
    yield house
    await house.index.aclose()


async def test_a_closed_index_does_not_open_its_file_again(plain: Harness) -> None:
    """What comes late at the end of the program, a search or an update, finds it closed."""
    await plain.say(A, "the boiler is serviced in March")
    await plain.index.update_all()
    assert opened(plain.home)  # the control
    await plain.index.aclose()

    await plain.index.update_all()
    await plain.index.search(SearchRequest(OWNER, "boiler"))

    assert not opened(plain.home)


async def test_the_index_follows_and_survives_a_restart(plain: Harness) -> None:
    """What was read is not read again; what is new is found at once, and is in the index after an update."""
    await plain.say(A, "tea one")
    await plain.index.update(A)
    assert plain.index.state() == {"complete": True, "behind": 0}
    await plain.index.aclose()
    plain.index = plain.opened()
    await plain.say(A, "tea two")
    assert await plain.found("tea") == ["tea two", "tea one"]
    await plain.index.update_all()
    (hit,) = (await plain.index.search(SearchRequest(OWNER, "tea"))).hits
    assert len(hit.messages) == 2


async def test_what_is_found_says_whose_words_it_is_made_of(plain: Harness) -> None:
    """From the histories and from the index; a line that does not say is the owner's where only they were."""
    page = (untrusted_origin("web", "https://example.org"),)
    told = Message(role="assistant", content="tea is blue", id="p", scope=str(OWNER), origins=page)
    await plain.memory.append_message(A, told)
    await plain.say(B, "tea is green")
    for _ in ("in the histories", "in the index"):
        hits = (await plain.index.search(SearchRequest(OWNER, "tea"))).hits
        assert {hit.messages[hit.at].content: hit.messages[hit.at].sources for hit in hits} == {
            "tea is blue": page,
            "tea is green": (),
        }
        await plain.index.update_all()


@pytest.mark.parametrize(
    "damage", ["gone", "garbage", "truncated", "other version", "older layout", "folder"]
)
async def test_a_damaged_index_is_made_again(plain: Harness, damage: str) -> None:
    """Whatever became of its file: everything is found before and after the next update."""
    await plain.say(A, "tea one", *["filler"] * 50)
    await plain.say(B, "coffee one", *["filler"] * 50)
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
                db.executescript("PRAGMA user_version = 6; DELETE FROM lines")  # nothing is read in it
            db.close()
        case "older layout":
            path.unlink()
            with closing(sqlite3.connect(path)) as db:
                db.executescript(OLDER)
        case "folder":
            path.unlink()
            path.mkdir()
    plain.index = plain.opened()
    assert await plain.found("tea") == ["tea one"]
    await plain.index.update(A)
    assert await plain.found("tea") == ["tea one"]
    assert await plain.found("coffee") == ["coffee one"]
    assert plain.index.state()["complete"] == (damage != "folder")


async def test_damage_in_the_middle_of_an_update_forgets_no_history(plain: Harness) -> None:
    """What was read before the damaged file was removed is read again."""
    for number in range(4):
        await plain.say(f"matrix/!{number}", f"tea {number}")
    read_lines_from, calls = plain.index._read_on, 0

    def damaged_once(name: str, key: SessionKey) -> bool:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise sqlite3.DatabaseError("malformed")
        return bool(read_lines_from(name, key))

    plain.index._read_on = damaged_once
    await plain.index.update_all()
    assert plain.index.state() == {"complete": True, "behind": 0}
    assert sorted(await plain.found("tea")) == [f"tea {number}" for number in range(4)]


async def test_a_process_that_ends_while_the_index_is_filled(plain: Harness) -> None:
    """The next one finds all of it, with what is indexed and the rest from the histories, and goes on there."""
    await plain.say(A, "oldest tea", *["filler"] * 900, "newest tea")
    await plain.say(B, "another tea")
    assert plain.index._read_on(A, SessionKey.parse(A))  # one batch of three; then the process ends
    plain.index._close()
    plain.index = plain.opened()
    answer = await plain.index.search(SearchRequest(OWNER, "tea"))
    assert answer.complete
    assert {hit.messages[hit.at].content for hit in answer.hits} == {
        "oldest tea",
        "newest tea",
        "another tea",
    }
    await plain.index.update_all()
    assert sorted(await plain.found("tea")) == ["another tea", "newest tea", "oldest tea"]
    assert await plain.index._written(lambda: plain.index._open_writer().counts()) == (2, 903)


async def test_a_mark_that_the_process_did_not_live_to_index(plain: Harness) -> None:
    """What was taken back is out of the index once it is followed, and out of each search before."""
    await plain.say(A, "wrong tea", "x", turn="t1")
    await plain.index.update_all()
    mark = Message(role="system", content="taken back", id="u", turn="u", scope="owner", undoes="t1")
    await plain.memory.append_message(A, mark)
    await plain.index.aclose()
    plain.index = plain.opened()
    assert await plain.found("wrong tea") == []
    await plain.index.update_all()
    assert await plain.found("wrong tea") == []
    assert await plain.index._written(lambda: plain.index._open_writer().counts()) == (1, 0)
    await plain.index.aclose()
    with closing(sqlite3.connect(plain.home / "search.db")) as db:
        db.execute("CREATE VIRTUAL TABLE temp.v USING fts5vocab(main, words, row)")
        assert db.execute("SELECT term FROM temp.v WHERE term IN ('wrong', 'tea')").fetchall() == []
        assert db.execute("SELECT lines FROM scopes").fetchall() == [(0,)]


@pytest.mark.parametrize("kept", [True, False])
async def test_a_turn_taken_back_and_indexed_during_a_search(
    plain: Harness, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """A search reads the index of one moment, so it knows which marks that had not seen; the control does not."""
    await plain.say(A, "wrong tea", "x", turn="t1")
    await plain.index.update_all()
    mark = Message(role="system", content="taken back", id="u", turn="u", scope="owner", undoes="t1")
    path = plain.memory.layout.history(SessionKey.parse(A))
    read = Rows.around

    def and_take_back(rows: Rows, *asked: Any) -> Any:
        found = read(rows, *asked)
        path.write_bytes(path.read_bytes() + to_line(mark, 2))
        plain.index._read_on(A, SessionKey.parse(A))
        return found

    monkeypatch.setattr(Rows, "around", and_take_back)
    if not kept:
        monkeypatch.setattr(Rows, "snapshot", lambda _: nullcontext())
    assert await plain.found("wrong tea") == ([] if kept else ["wrong tea"])


@pytest.mark.parametrize("indexed", [True, False])
async def test_one_message_of_a_turn_is_taken_back(plain: Harness, indexed: bool) -> None:
    """By an id that begins with its turn, as ours do; the other lines keep their ids and stay."""
    lines = [
        Message(role="user", content=f"tea {number}", id=f"t1.{number}", turn="t1", scope="owner")
        for number in range(3)
    ]
    await plain.memory.append_message(A, *lines)
    await plain.index.update_all()
    mark = Message(role="system", content="taken back", id="u", turn="u", scope="owner", undoes="t1.1")
    await plain.memory.append_message(A, mark)
    if indexed:
        await plain.index.update_all()
    hits = (await plain.index.search(SearchRequest(OWNER, "tea"))).hits
    assert {(each.id, each.turn) for hit in hits for each in hit.messages} == {("t1.0", "t1"), ("t1.2", "t1")}


async def test_histories_that_are_replaced_or_removed(plain: Harness) -> None:
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


async def test_half_a_line_is_waited_for(plain: Harness) -> None:
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


@pytest.mark.parametrize("noted", [True, False])
async def test_what_was_appended_is_found_before_it_is_indexed(plain: Harness, noted: bool) -> None:
    """Of an index that has all, the newest line is found at once; unless nobody tells it that a history grew."""
    await plain.say(A, "a heron in the reeds")
    await plain.index.update_all()
    if not noted:
        plain.memory._on_append = lambda _: None
    await plain.say(A, "a heron on the roof")
    await plain.say(B, "a heron in the tree")
    found = ["a heron in the tree", "a heron on the roof"] if noted else []
    assert await plain.found("heron") == [*found, "a heron in the reeds"]
    await plain.index.update_all()
    assert plain.index.state() == {"complete": True, "behind": 0}
    assert (await plain.found("heron"))[0] == "a heron in the tree"


async def test_a_line_appended_while_a_history_is_read_is_found(plain: Harness) -> None:
    """The reading that began before it does not count as having read it."""
    await plain.index.update_all()
    read_lines_from = plain.index._read_on

    def append_behind(name: str, key: SessionKey) -> bool:
        more = read_lines_from(name, key)
        if not more and plain.said == 1:
            anyio.from_thread.run(plain.say, A, "a heron on the roof")
        return more

    await plain.say(A, "a heron in the reeds")
    plain.index._read_on = append_behind
    await plain.index.update(A)
    assert plain.index.state() == {"complete": True, "behind": 1}
    assert await plain.found("heron") == ["a heron on the roof", "a heron in the reeds"]
    await plain.index.update(A)
    assert plain.index.state() == {"complete": True, "behind": 0}


async def test_a_long_history_is_read_in_batches(plain: Harness) -> None:
    """More lines than one batch has are all read; a line over any limit is passed over."""
    await plain.say(A, *[f"word{number} tea" for number in range(1000)])
    path = plain.memory.layout.history(SessionKey.parse(A))
    with path.open("ab") as file:
        file.write(b"x" * (17 * 1024 * 1024) + b"\n")
    await plain.say(A, "last tea")
    await plain.index.update_all()
    assert plain.index.state() == {"complete": True, "behind": 0}
    assert (await plain.found("word3"))[0] == "word3 tea"
    assert (await plain.found("tea", max_results=1)) == ["last tea"]


async def test_while_it_is_built_the_newest_are_found(plain: Harness) -> None:
    """Without an index a search looks as far back as its budget goes, and says that it was not all."""
    await plain.say(A, "oldest tea")
    for _ in range(12):
        await plain.say(A, *["some filler " * 500] * 10)
    await plain.say(A, "newest tea")
    answer = await plain.index.search(SearchRequest(OWNER, "tea"))
    assert [hit.messages[hit.at].content for hit in answer.hits] == ["newest tea"]
    assert not answer.complete
    await plain.index.update_all()
    answer = await plain.index.search(SearchRequest(OWNER, "tea"))
    assert len(answer.hits) == 2 and answer.complete


async def test_lines_of_one_second_and_without_a_time(plain: Harness) -> None:
    """More than a second has numbers, and at one time as many as a long import: each is found, in its order."""
    path = plain.memory.layout.history(SessionKey.parse(A))
    path.parent.mkdir(parents=True)
    lines = [f'{{"role":"user","content":"tea {number}","scope":"owner"}}\n' for number in range(2000)]
    path.write_text("".join(lines))
    await plain.index.update_all()
    assert await plain.index._written(lambda: plain.index._open_writer().counts()) == (1, 2000)
    assert await plain.found("tea", max_results=2) == ["tea 1999", "tea 1997"]
    assert (await plain.found("17"))[0] == "tea 17"


@pytest.mark.parametrize(
    "query",
    ["tea " * 250_000, " ".join(f"w{n}" for n in range(5000)) + " tea", '"' * 1_000_000, '"tea" ' * 200_000,
     "\x00 tea" * 100_000, "AND OR NOT NEAR( tea" * 50_000, "猫" * 500_000, "x" * 1_000_000],
    ids=["long", "words", "quotes", "phrases", "NULs", "operators", "unspaced", "one word"],
)  # fmt: skip
async def test_no_query_is_slow(plain: Harness, query: str) -> None:
    """Of any query a bounded part is searched, with a bounded number of words."""
    assert len(parse_query(query).terms) <= 16
    await plain.say(A, "tea " * 100)
    for _ in ("in the histories", "in the index"):
        answer = await plain.index.search(SearchRequest(OWNER, query))
        assert len(answer.hits) <= 1
        await plain.index.update_all()


async def test_of_many_hits_the_newest_are_read(plain: Harness) -> None:
    """Of more lines than are rated, which are as good, in the histories and in the index."""
    for number in range(150):
        await plain.say(A, f"tea {number}", "x")
    for _ in ("in the histories", "in the index"):
        assert await plain.found("tea", max_results=3) == ["tea 149", "tea 148", "tea 147"]
        await plain.index.update_all()


def test_folding() -> None:
    """Words and nothing else, the same for index and query."""
    assert fold("  Été — C'est  l’heure! ") == "ete c est l heure"
    terms = parse_query('one "two  THREE" four-five').terms
    assert [term.words for term in terms] == ["one", "two three", "four", "five"]
    assert [term.quoted for term in terms] == [False, True, False, False]
    assert [term.words for term in parse_query("to be or not to be").terms] == ["to", "be", "or", "not"]
    assert [term.words for term in parse_query("What is the name?").terms] == ["name"]
    assert parse_query("!!! --- ...").terms == ()


async def test_a_scope_that_comes_while_a_search_runs_is_not_found(
    plain: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of another scope have other numbers, also if it comes while a search runs."""
    await plain.say(A, "the secret of the owner")
    await plain.index.update_all()
    matching, writer = Rows._matching, Rows(plain.home / "search.db", writable=True)

    def late(self: Rows, *arguments: Any) -> list[int]:
        if writer.mark(B) is None:
            line = SearchLine(0, 1, "user", None, "the secret of bob", str(BOB))
            writer.add(writer.begin(B, 1), [line], position=1, byte=1)
        return matching(self, *arguments)

    monkeypatch.setattr(Rows, "_matching", late)
    assert await plain.found("secret") == ["the secret of the owner"]
    assert writer.counts() == (2, 2)  # the control
    writer.close()


async def test_many_lines_of_one_time_are_indexed_as_quickly_as_others(tmp_path: Path):
    """As in imported histories: the work for a line, in steps of the database, does not grow with their number."""
    rows, steps = Rows(tmp_path / "search.db", writable=True), []
    mark = rows.begin(A, 1)

    def add(first: int, count: int, ms: int) -> int:
        lines = [SearchLine(n, ms, "user", None, f"tea {n}", "owner") for n in range(first, first + count)]
        steps.clear()
        rows.connection.set_progress_handler(lambda: steps.append(1), 10)
        rows.add(mark, lines, position=first + count, byte=first + count)
        return len(steps)

    once = add(0, 100, 60_000)
    for first in range(100, 4000, 100):
        again = add(first, 100, 60_000 + first // 1000 * 2000)
    assert again < 3 * once
    found, _ = rows.candidates(parse_query("tea"), "owner", Filters())
    assert sorted((lines[at].position for _, lines, at in found.values()), reverse=True) == list(
        range(3999, 3899, -1)
    )
    rows.close()
