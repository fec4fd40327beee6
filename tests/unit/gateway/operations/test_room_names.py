"""Lists name rooms as people know them; programs get the ids besides."""

from __future__ import annotations

from gateway.operations.operation_views import copied_rows, name_rooms
from gateway.operations.render.schedule_text import job
from gateway.system.terminal_text import place_of


class Rooms:
    """A channel that knows the name of one room."""

    def name_giver(self, conversation):
        return ""

    def member_names(self, conversation):
        return {}

    def room_name(self, conversation):
        return "Kitchen\x1b[2J" if conversation == "!k:hs.test" else ""

    async def people(self, conversation):
        return {}


def with_room_names(answer, channels):
    named, rows = copied_rows(answer)
    name_rooms(rows, channels)
    return named


ROW = {
    "id": "a2b3c", "kind": "remind", "when": "every day", "state": "active", "next": "soon", "last": None, "note": "", "text": "tea",
    "person": "@bob:hs.test", "session": "matrix/!k%3ahs.test",
}  # fmt: skip


def test_a_room_has_its_name_wherever_a_row_names_its_session():
    """At any depth; a session of another channel, a room without a name and what is no session stay as they are."""
    rows = [ROW, {"session": "matrix/!x"}, {"session": "email/!k%3ahs.test"}, {"session": "?"}, {"name": "x"}]
    answer = with_room_names({"jobs": rows, "total": 5}, {"matrix": Rooms()})
    first, *others = answer["jobs"]
    assert first == {**ROW, "room": "Kitchen\x1b[2J"}
    assert others == rows[1:]
    assert "room" not in ROW


def test_people_see_the_name_and_no_control_sequence():
    """In quotation marks, because somebody else has chosen it."""
    named = with_room_names(ROW, {"matrix": Rooms()})
    assert "@bob:hs.test in “Kitchen\\x1b[2J”: tea" in job(named)
    assert place_of(ROW) == "matrix/!k%3ahs.test"


def test_a_job_without_a_next_time_says_nothing_of_it():
    """One that a webhook or a mail starts."""
    called = {**ROW, "when": "when the webhook door is called", "next": None}
    assert job(called).splitlines()[0] == "a2b3c  remind  when the webhook door is called"
    assert "; next soon" in job(ROW)
    assert "every day; paused" in job({**ROW, "state": "paused"})
