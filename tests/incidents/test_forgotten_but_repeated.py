"""`squidbot forget` left a person's words where they were repeated in answers to others, and did not say so."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from agent_core.models import MemoryScope, ScopeKind
from agent_core.storage.jsonl import JsonlMemory
from agent_core.storage.layout import Layout
from gateway.cli.check import check_data
from gateway.operations.privacy.erasure import forget_person
from gateway.operations.privacy.repetitions import BLANK, Words
from tests.home_world import ALICE, BOB, ROOM, fill, tree
from tests.integration.test_person_data import NOW, bob, holding

SECRET = "my sister Greta moves to Lisbon on the third of May"
PIN = "4711-0815"
COMMON = "shall we meet in the garden on friday"


@pytest.fixture
async def home(tmp_path):
    """Bob told something; Alice was told it again, in a room and alone, and the memory of the room has it."""
    filled = await fill(tmp_path / "home")
    await filled.say(BOB, "@bob:hs.test", f"{SECRET}, and the code is {PIN}", "good to know", native_id="$x1")
    await filled.say(ROOM, "@bob:hs.test", COMMON, "fine", native_id="$x2")
    await filled.say(
        ROOM, "@alice:hs.test", COMMON, "you asked: shall we meet in the garden on friday", native_id="$x3"
    )
    await filled.say(
        ALICE, "@alice:hs.test", "what is new?", f"Bob says that My sister GRETA moves to Lisbon on the third of May; code {PIN}!",
        native_id="$x4",
    )  # fmt: skip
    memory = JsonlMemory(filled.home.root, clock=filled.clock)
    room = MemoryScope(ScopeKind.ROOM, str(ROOM))
    await memory.save_global_memory(
        room, f"tea on mondays\nBob: {SECRET}\n", session_id=str(ROOM), turn="another"
    )
    await memory.save_consolidation(str(ALICE), summary=f"Alice knows that {SECRET}.", cursor=1)
    return filled


def layout_of(home):
    return Layout(home.home.root, home.home.root / "workspace")


def forget(home, **more):
    return forget_person(layout_of(home), home.home.database, bob(), now=NOW, **more)


async def test_without_the_option_the_places_are_listed(home):
    """In the dry run, which changes nothing, and afterwards."""
    before = tree(home.home.root)
    seen = forget(home, only_look=True)
    assert {
        name: data for name, data in tree(home.home.root).items() if not name.startswith("gateway.db-")
    } == {name: data for name, data in before.items() if not name.startswith("gateway.db-")}
    told = "\n".join(seen.repeated)
    for place in (
        f"sessions/{ALICE.file_name}.jsonl (1 lines)",
        "the summary of",
        "gateway.db, outbox",
        "MEMORY.md",
    ):
        assert place in told
    assert f"sessions/{ROOM.file_name}" not in told, "Alice has said that herself"
    done = forget(home)
    assert done.repeated == seen.repeated
    assert holding(home.home.root, [PIN, "Lisbon"]) == ["4711-0815", "Lisbon"]


async def test_with_it_they_are_blanked(home):
    """Not a byte of them is left; what others said, and every line's place, stays; the home is whole."""
    root = home.home.root
    before = [path.read_text().count("\n") for path in sorted((root / "sessions").glob("*.jsonl"))]
    forget(home, also_repeated=True)
    assert holding(root, [PIN, "Lisbon", "GRETA", "Greta"]) == []
    assert holding(root, [COMMON, "tea on mondays", "Bob says that", "what is new?"]) == [
        "Bob says that", COMMON, "tea on mondays", "what is new?",
    ]  # fmt: skip
    after = [path.read_text().count("\n") for path in sorted((root / "sessions").glob("*.jsonl"))]
    assert sum(after) <= sum(before)
    with closing(sqlite3.connect(home.home.database)) as db:
        said = [
            json.loads(row[0])["text"] for row in db.execute("SELECT payload FROM outbox WHERE payload <> ''")
        ]
    assert any(BLANK in text for text in said)
    report = check_data(home.home, home.home.config_file)
    assert report.exit_code == 0, report.as_text()


@pytest.mark.parametrize(
    ("said", "repeated", "left"),
    [
        ("one two three four five six seven", "He: One two, three four five SIX seven!", f"He: {BLANK}!"),
        ("one two three four five six seven", "one two three four five", "one two three four five"),
        ("meet at noon", "they meet at noon there", f"they {BLANK} there"),
        ("yes", "yes", "yes"),
        ("my number is 0170 1234567", "call 1234567", f"call {BLANK}"),
        ("write to bob@home.test", "at bob@home.test.", f"at {BLANK}."),
    ],
)
def test_what_is_recognised(said, repeated, left):
    """Runs of six words, all of a short message, and rare words; nothing shorter."""
    words = Words()
    words.add(said)
    assert words.blanked(repeated) == left
