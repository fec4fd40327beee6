"""The process that forks lives for the kill tests answers each test for its own life."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

import pytest

from tests.kill.nursery import Nursery

CHILD = """
import json, sys, time
for line in sys.stdin:
    life = json.loads(line)
    if life["lasts"]:
        open(life["began"], "w").close()
        time.sleep(1 if life["lasts"] == "a moment" else 600)
    print(life["code"], flush=True)
"""


@dataclass
class Life:
    code: int
    lasts: str = ""
    began: str = ""


@pytest.fixture
def nursery(tmp_path, monkeypatch):
    (tmp_path / "child_of_a_test.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Nursery("child_of_a_test") as one:
        yield one


@pytest.fixture
def broken_off(tmp_path):
    """Calls something, and breaks it off as soon as the life has begun, as a limit of time does."""

    def call(function, life):
        def stop():
            while not began.exists():
                ended.wait(0.01)
            os.kill(os.getpid(), signal.SIGUSR1)

        def raises(*_):
            raise KeyboardInterrupt

        began, ended = tmp_path / "began", threading.Event()
        life.began = str(began)
        before = signal.signal(signal.SIGUSR1, raises)
        thread = threading.Thread(target=stop)
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                function(life)
        finally:
            thread.join()
            signal.signal(signal.SIGUSR1, before)

    return call


def test_a_life_that_was_broken_off_is_nobody_elses(nursery, broken_off):
    """The next one has a process of its own."""
    assert [nursery.live(Life(code)) for code in (3, -9)] == [3, -9]
    broken_off(nursery.live, Life(5, "for ever"))
    assert nursery.live(Life(4)) == 4


def test_one_that_keeps_its_process_would_be_noticed(nursery, broken_off, monkeypatch):
    """The control: the answer of the life before comes first."""
    assert nursery.live(Life(3)) == 3
    monkeypatch.setattr(Nursery, "close", lambda self: None)
    broken_off(nursery.live, Life(5, "a moment"))
    assert nursery.live(Life(4)) == 5
    monkeypatch.undo()
