"""The index of what was said and its files: it follows the histories, and is made again when it is of no use."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.provenance import untrusted
from agent_core.storage.search_index.text import folded, parse_query
from tests.open_files import opened
from tests.search_house import OWNER, A, B, House


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


async def test_what_is_found_says_whose_words_it_is_made_of(plain: House) -> None:
    """From the histories and from the index; a line that does not say is the owner's where only they were."""
    page = (untrusted("web", "https://example.org"),)
    told = Message(role="assistant", content="tea is blue", id="p", scope=str(OWNER), origins=page)
    await plain.memory.append_message(A, told)
    await plain.say(B, "tea is green")
    for _ in ("in the histories", "in the index"):
        hits = (await plain.index.search(OWNER, "tea")).hits
        assert {hit.messages[hit.at].content: hit.messages[hit.at].sources for hit in hits} == {
            "tea is blue": page,
            "tea is green": (),
        }
        await plain.index.update_all()


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
    await plain.say(A, "last tea")
    await plain.index.update_all()
    assert plain.index.state() == {"complete": True, "behind": 0}
    assert (await plain.found("word3"))[0] == "word3 tea"
    assert (await plain.found("tea", max_results=1)) == ["last tea"]


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


def test_folding() -> None:
    """Words and nothing else, the same for index and query."""
    assert folded("  Été — C'est  l’heure! ") == "ete c est l heure"
    terms = parse_query('one "two  THREE" four-five').terms
    assert [term.words for term in terms] == ["one", "two three", "four", "five"]
    assert [term.quoted for term in terms] == [False, True, False, False]
    assert [term.words for term in parse_query("to be or not to be").terms] == ["to", "be", "or", "not"]
    assert [term.words for term in parse_query("What is the name?").terms] == ["name"]
    assert parse_query("!!! --- ...").terms == ()
