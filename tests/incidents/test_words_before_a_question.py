"""
What people say in a room without meaning the bot goes along with the next question of somebody else, and so
does what a message answers. There it stayed: `forget` left the forgotten person's words in the questions of
others, in the database and in the histories; and an export of the one who had asked handed them out.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent_core.messages import Background
from agent_core.prompt import REMOVED, background_text, remove_words_of
from agent_core.storage.layout import Layout
from gateway.operations.privacy.export import export_person
from gateway.operations.privacy.inventory import people
from gateway.operations.privacy.person_erasure import forget_person
from tests.home_world import ALICE, ROOM, fill, tree

NOW = datetime(2026, 2, 1, tzinfo=UTC)
A, B = "@alice:hs.test", "@bob:hs.test"
BOBS = ["bob-in-passing", "bob-in-two-lines", "bob-was-answered", "bob-handed-on"]


async def lived_in(root):
    """Alice has asked something after Bob had spoken, and Bob after Alice."""
    filled = await fill(root)
    said = (
        Background(kind="talk", sender=A, name=B, text="alice-in-passing"),
        Background(kind="talk", sender=B, name="x] (y", text=f"bob-in-passing\n[{A}] bob-in-two-lines"),
        Background(kind="quoted", sender=B, text="bob-was-answered"),
    )
    await filled.say(ROOM, A, "alice-asks", "so I say", native_id="$r5", background=said)
    handed = Background(kind="forwarded", sender=f"Bob (B.) <{B}>", text="bob-handed-on")
    await filled.say(ALICE, A, "alice-asks-alone", "I see", native_id="$a2", background=(handed,))
    await filled.say(ROOM, B, "bob-asks", "well", native_id="$r6", background=said[:1])
    return filled, Layout(root, root / "workspace")


def holding(root, texts):
    """Which of the texts stand in any byte of any file below."""
    everything = b"\0".join(tree(root).values())
    return sorted(text for text in texts if text.encode() in everything)


async def test_what_a_forgotten_person_said_before_the_questions_of_others_goes(tmp_path):
    """No byte of it is left, and the questions of others are whole."""
    filled, layout = await lived_in(tmp_path / "home")
    assert holding(layout.home, BOBS) == sorted(BOBS), "the control"
    forgotten = forget_person(layout, filled.home.database, people([B], [A]), now=NOW)
    assert holding(layout.home, BOBS) == []
    assert holding(layout.home, ["alice-in-passing", "alice-asks", "alice-asks-alone"]) == sorted(
        ["alice-in-passing", "alice-asks", "alice-asks-alone"]
    )
    assert forgotten.counts["shared_conversations"] == 2
    again = forget_person(layout, filled.home.database, people([B], [A]), now=NOW)
    assert again.counts["shared_conversations"] == 0


async def test_an_export_has_nothing_that_others_said_before(tmp_path):
    """Bob's export has what he said, and not what Alice had said before he asked."""
    filled, layout = await lived_in(tmp_path / "home")
    export_person(layout, filled.home.database, people([B], [A]), tmp_path / "bob", now=NOW)
    assert holding(tmp_path / "bob", ["bob-asks"]) == ["bob-asks"]
    assert holding(tmp_path / "bob", ["alice-in-passing", "alice-asks"]) == []


@pytest.mark.parametrize("kind", ["talk", "quoted", "thread", "forwarded"])
def test_each_kind_is_taken_out_and_nothing_else(kind):
    """Names that look like addresses, and texts that look like the next speaker, change nothing."""
    lines = [
        (kind, A, "name", f"one\n[{B}] two"),
        (kind, B, "Bob", "gone\n\n  [x] gone\n</quoted> gone"),
        (kind, A, "", "three"),
    ]
    text = f"{background_text(lines)}\n\n[{B}] and a question"
    left = remove_words_of(text, lambda who: who == B)
    assert "gone" not in left
    assert left.count(REMOVED) == 1
    assert all(word in left for word in ("one", "two", "three", "and a question"))
    assert remove_words_of(text, lambda _: False) == text
