"""`squidbot chat` on a full disk: a person sits before it, so it says so at once, and goes on when there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import CONFIG
from tests.home_damage import fill
from tests.unit.gateway.cli.test_chat import Terminal, terminal

pytestmark = pytest.mark.integration


def test_a_full_disk_is_said_in_a_conversation_and_at_the_start(small_disk: Path) -> None:
    """What was typed is answered as soon as it can be kept."""
    home = small_disk / "home"
    home.mkdir(mode=0o700)
    (home / "squidbot.yaml").write_text(CONFIG)
    with terminal(home) as screen:
        screen.type("hello\n")
        screen.wait_for("demo model")
        ballast = fill(small_disk)
        screen.type("hello again\n")
        screen.wait_for("not accepted yet: it is not stored yet; perhaps the disk is full", limit_s=60)
        ballast.unlink()
        screen.wait_for("hello again", limit_s=60)
        screen.type("/quit\n")
        assert screen.ended(60) == 0
    ballast = fill(small_disk)
    screen = Terminal(home, "chat")
    try:
        screen.wait_for("is on a full disk", limit_s=60)
        assert screen.ended(60) == 74
    finally:
        screen.close()
