"""The words of `!status` and `squidbot status`: services that people know, and what they can do."""

from __future__ import annotations

from gateway.operations import render
from gateway.settings.accounts import RESERVED
from gateway.system.terminal_text import LOCAL_PARTS
from gateway.turns.commands.command_text import about_parts

SINCE = "2026-01-03T14:00:00+00:00"


def channel(state: str = "up", detail: str = "") -> dict[str, str]:
    return {"state": state, "detail": detail, "since": SINCE}


def report(**changes) -> dict:
    channels = {"matrix": channel(), "heartbeat": channel(), "terminal": channel()}
    work = {"inbox": {"running": 1, "dead": 2, "settled": 9}, "outbox": {"dead": 1, "unknown": 1, "sent": 9}}
    return {"version": "1", "running": True, "channels": channels, "work": work, **changes}


def test_services_are_named_and_what_failed_says_what_to_do() -> None:
    """No word of the queue, and a command behind each thing that waits for a person."""
    matrix, messages, answers = about_parts(report())[1:]
    assert matrix == "- Matrix is connected"
    assert messages == (
        "- messages: 2 that I could not answer, which I have told the sender (`!console` shows them)"
    )
    assert answers.startswith("- answers: 1 not delivered (`!console` says why) and 1 that may not")


def test_what_is_no_service_is_told_when_it_fails_only() -> None:
    """Check-ins by the word that people know, an account by its own name."""
    channels = {
        "work-mail": channel("down", "wrong password"),
        "heartbeat": channel("failed", "no such zone"),
    }
    assert about_parts(report(channels=channels))[1:3] == [
        "- Check-in needs you: no such zone",
        "- Work-mail is not connected: wrong password",
    ]
    assert set(LOCAL_PARTS) < RESERVED  # no account has such a name


def test_the_command_line_uses_the_same_words() -> None:
    """And names the command for what was not answered."""
    told = render.status(report(given_up=2))
    assert "  check-in   up" in told
    assert "  local chat up" in told
    assert "2 not answered" in told
    assert "1 failed, 1 perhaps sent" in told
    assert "not answered, and the sender was told so: 2 (squidbot inbox list --state dead" in told
    assert not any(word in told for word in ("heartbeat", "terminal", "given up", "apology"))
