"""`squidbot forget` left a person's words where they were repeated in answers to others, and did not say so."""

from __future__ import annotations

import pytest

from agent_core.models import MemoryScope, ScopeKind
from agent_core.prompt import background_text
from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.storage.layout import Layout
from gateway.operations.privacy.person_erasure import forget_person
from gateway.operations.privacy.repetition_report import IdentifyingWords
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


async def test_the_places_are_listed_and_stay(home):
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


TALK = "the surprise party for Alice is in the old boathouse"


async def test_words_said_in_a_group_to_others_are_recognised_where_they_are_repeated(home):
    """They stand before somebody else's question only, and are not what that person has said."""
    before = background_text(
        [("talk", "@bob:hs.test", "Bob", TALK), ("talk", "@cid:hs.test", "", "bring your own drum")]
    )
    await home.say(
        ROOM,
        "@alice:hs.test",
        f"{before}\n\nwhat is planned?",
        f"Well, {TALK}, so bring your own drum.",
        native_id="$x5",
    )
    repeated = forget(home, only_look=True).repeated
    assert f"sessions/{ROOM.file_name}.jsonl (1 lines)" in "\n".join(repeated)


async def test_words_that_others_said_there_are_not_the_persons(home):
    """The control: an answer that repeats only what somebody else has said is not listed."""
    before = background_text(
        [("talk", "@bob:hs.test", "Bob", TALK), ("talk", "@cid:hs.test", "", "bring your own drum")]
    )
    await home.say(
        ROOM,
        "@alice:hs.test",
        f"{before}\n\nwhat is planned?",
        "Somebody said: bring your own drum.",
        native_id="$x5",
    )
    assert f"sessions/{ROOM.file_name}" not in "\n".join(forget(home, only_look=True).repeated)


@pytest.mark.parametrize(
    ("said", "repeated", "is_found"),
    [
        ("one two three four five six seven", "He: One two, three four five SIX seven!", True),
        ("one two three four five six seven", "one two three four five", False),
        ("meet at noon", "they meet at noon there", True),
        ("yes", "yes", False),
        ("my number is 0170 1234567", "call 1234567", True),
        ("write to bob@home.test", "at bob@home.test.", True),
    ],
)
def test_what_is_recognised(said, repeated, is_found):
    """Runs of six words, all of a short message, and rare words; nothing shorter."""
    words = IdentifyingWords()
    words.add(said)
    assert words.occur_in(repeated) is is_found
