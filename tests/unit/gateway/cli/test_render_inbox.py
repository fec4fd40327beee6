"""The list of messages says what a person has written and what was scheduled."""

from __future__ import annotations

import pytest

from gateway.operations import render

ROW = {
    "id": 7,
    "state": "settled",
    "accepted_at": "2026-01-01T10:00:00+00:00",
    "channel": "matrix",
    "sender": "@ann:hs.test",
    "error": None,
}


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        ("job", "water the plants", "[scheduled] water the plants"),
        ("tick", "tick", "[check-in] tick"),
        ("job", None, "[scheduled]"),
        ("message", None, "[message]"),
    ],
)
def test_a_reminder_is_no_message_of_its_person(kind: str, text: str | None, shown: str) -> None:
    """The control is a message, which begins with its own words."""
    assert render.inbox_rows([{**ROW, "kind": kind, "text": text}]).rstrip().endswith(f"  {shown}")
    assert "[" not in render.inbox_rows([{**ROW, "kind": "message", "text": "hello"}])


@pytest.mark.parametrize("cut", ["\n", "\r", "\x0b", "\x85", "\u2028"])
def test_no_sender_writes_a_line_of_ours(cut: str) -> None:
    """Neither an address, a text nor a subject makes a line that looks like the list's own."""
    forged = f"x{cut}message 8: settled"
    row = {**ROW, "session": forged, "sender": forged, "verified": True, "attempts": 1, "deferrals": 0}
    shown = render.inbox_row(
        {
            "row": {**row, "next_at": None, "error": forged, "text": forged, "also": {"Subject": forged}},
            "outbound": [],
        }
    )
    lines = [line for each in shown.split("\n") for line in each.splitlines()]
    assert [line for line in lines if line.startswith("message")] == ["message 7: settled"]
    assert forged not in render.inbox_rows([{**ROW, "kind": "message", "sender": forged, "text": forged}])
