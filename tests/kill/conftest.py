"""
What the kill tests share.

``SQUIDBOT_KILLS`` says how many random kills there are (besides those at named moments), and
``SQUIDBOT_KILL_SEED`` where their seeds begin, to try other moments than the usual ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kill.scenario import Nursery
from tests.kill.tally import TALLY

HERE = Path(__file__).parent
DEFAULT_KILLS = 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("kill")


def random_kills() -> tuple[int, int]:
    """How many random kills there shall be: on the loopback server, and on the real ones."""
    wanted = int(os.environ.get("SQUIDBOT_KILLS", DEFAULT_KILLS))
    real = max(2, wanted // 10)
    return max(2, wanted - real), real


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY:
        told = ", ".join(f"{count} {what}" for what, count in sorted(TALLY.items()))
        terminalreporter.write_line(f"SIGKILLs that hit: {sum(TALLY.values())} ({told})")


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Forks gateways; one for all tests."""
    with Nursery() as one:
        yield one
