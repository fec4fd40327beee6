"""Calls of several tools in one answer of a model, ten of them in a question, over a SIGKILL at every step."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doubles.loopback import FileLoopbackServer
from tests.kill.questions_child import MANY, TOOLS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200, func_only=True)]
ASKED = re.compile(r"\*\*(a[0-9a-f]{6})\*\*.*approval for (\d+) calls:")
BOB, EVE = "@bob:hs.test", "@eve:hs.test"
TOGETHER = 10


class Lives:
    """A gateway that is killed and started again, and what it has asked."""

    def __init__(self, folder: Path, *defect: str) -> None:
        self.folder, self.server = folder, FileLoopbackServer(folder / "server")
        self.ahead_s, self.deaths, self.defect = 0.0, 0, defect

    @contextmanager
    def life(self) -> Iterator[None]:
        command = [sys.executable, "-m", "tests.kill.questions_child", str(self.folder), str(self.ahead_s)]
        command += self.defect
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
            try:
                yield
            finally:
                child.kill()
        self.deaths += 1

    def texts(self, person: str) -> list[str]:
        self.server.refresh()
        return [each.text for each in self.server.seen(f"dm-{person}")]

    def asked(self, person: str) -> list[tuple[str, int]]:
        """Name and number of calls of each question so far."""
        found = [ASKED.search(" ".join(text.split())) for text in self.texts(person)]
        return [(each[1], int(each[2])) for each in found if each is not None]

    def until_asked(self, person: str, count: int) -> tuple[str, int]:
        """Live until so many questions were asked, and die; the newest of them."""
        with self.life():
            self.wait(lambda: len(self.asked(person)) >= count)
        return self.asked(person)[-1]

    def wait(self, what: object) -> None:
        until = time.monotonic() + 90
        while not what():
            assert time.monotonic() < until, [self.texts(BOB), self.texts(EVE)]
            time.sleep(0.05)

    def kept(self) -> list[str]:
        file = self.folder / "kept"
        return file.read_text().split("\n")[:-1] if file.exists() else []


def test_questions_about_several_tools_of_one_answer(tmp_path: Path) -> None:
    """Two people's, answered crosswise with yes, no and nothing; each call runs once, or is told not to have run."""
    lives = Lives(tmp_path)
    lives.server.say(BOB, "bob")
    first = lives.until_asked(BOB, 1)
    lives.server.say(EVE, "eve")
    hers = lives.until_asked(EVE, 1)
    assert first[1] == hers[1] == TOGETHER
    lives.server.say(EVE, f"!approve {hers[0]}")  # who was asked last answers first
    rest = lives.until_asked(EVE, 2)
    lives.server.say(BOB, f"!approve {first[0]}")
    late = lives.until_asked(BOB, 2)
    assert rest[1] == late[1] == len(TOOLS) - 1 + MANY - TOGETHER
    lives.server.say(EVE, f"!approve {rest[0]}")
    with lives.life():
        lives.wait(lambda: any(text.startswith("so:") for text in lives.texts(EVE)))
    lives.ahead_s = 2 * 3600.0  # nobody answers Bob's second question in its time
    lives.server.say(BOB, f"!approve {late[0]}")  # too late
    with lives.life():
        lives.wait(lambda: any(text.startswith("so:") for text in lives.texts(BOB)))
    expected = [f"write_down {who}-{number}" for who in ("bob", "eve") for number in range(TOGETHER)]
    hers_too = [f"write_down eve-{number}" for number in range(TOGETHER, MANY)]
    assert sorted(lives.kept()) == sorted([*expected, *hers_too, "note eve", "stamp eve"])
    assert len({name for person in (BOB, EVE) for name, *_ in lives.asked(person)}) == 4
    answers = [[text for text in lives.texts(who) if text.startswith("so:")] for who in (BOB, EVE)]
    assert [len(each) for each in answers] == [1, 1]
    not_run = len(TOOLS) - 1 + MANY - TOGETHER
    assert [each[0].count("did not answer in time") for each in answers] == [not_run, 0]
    assert lives.deaths == 6


def test_a_gateway_that_forgets_its_calls_is_caught(tmp_path: Path) -> None:
    """The control: the calls before the second question run again after it, and stand in the file twice."""
    lives = Lives(tmp_path, "forgetful")
    lives.server.say(BOB, "bob")
    first = lives.until_asked(BOB, 1)
    lives.server.say(BOB, f"!approve {first[0]}")
    rest = lives.until_asked(BOB, 2)
    assert sorted(lives.kept()) == sorted(f"write_down bob-{number}" for number in range(TOGETHER))
    lives.server.say(BOB, f"!approve {rest[0]}")
    with lives.life():
        lives.wait(lambda: any(text.startswith("so:") for text in lives.texts(BOB)))
    assert lives.kept().count("write_down bob-0") > 1
