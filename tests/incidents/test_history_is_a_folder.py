"""
The history of a conversation was a folder (a slip in a shell, or a program that keeps files in step). Every
message in it was put back for later, for ever.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage.jsonl_memory import JsonlMemory
from gateway.cli.check.all_checks import check_data
from gateway.system.home import Home
from tests.clock import ManualClock
from tests.proactive_world import ANN, house


def folder(path: Path) -> None:
    (path / "inside").mkdir(parents=True)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_file(path: Path) -> None:
    path.with_name("elsewhere").write_text("")
    path.symlink_to("elsewhere")


def link_to_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [folder, pipe, link_to_a_file, link_to_nowhere])
async def test_both_questions_are_answered_and_the_owner_is_told(tmp_path: Path, make) -> None:
    """What stood there is moved away as it is; the history goes on as a new file."""
    sessions = tmp_path / "sessions"
    async with house(tmp_path, heartbeat={"enabled": False}) as home:
        home.chat.say(ANN, "Question 1")
        await home.until(lambda: sum(one.kind == "reply" for one in home.chat.delivered) == 1)
        await home.until(lambda: list(sessions.glob("*.jsonl")))
        (history,) = sessions.glob("*.jsonl")
        history.rename(tmp_path / "taken away")
        make(history)
        home.chat.say(ANN, "Question 2")
        await home.until(lambda: any("Question 2" in one.text for one in home.chat.delivered))
        await home.until(home.alerts)
        (told,) = home.alerts()
    assert "was not a file" in told.text and "set-aside-1" in told.text
    assert history.is_file() and not history.is_symlink()
    assert "Question 2" in history.read_text()
    assert os.path.lexists(f"{history}.set-aside-1")


@pytest.mark.parametrize("make", [folder, pipe])
def test_the_check_says_it_and_mends_it(tmp_path: Path, make) -> None:
    """While no daemon runs; it does not wait for a pipe."""
    (tmp_path / "squidbot.yaml").write_text("gateway: {log: {level: info}}\n")
    (tmp_path / "sessions").mkdir()
    (tmp_path / "run").mkdir()
    history = tmp_path / "sessions" / f"{SessionKey('matrix', '!r:hs.test').file_name}.jsonl"
    make(history)
    home = Home(tmp_path)
    report = check_data(home, home.config_file)
    assert report.exit_code == 1 and "is not a file" in report.as_text()
    check_data(home, home.config_file, repair=True)
    assert check_data(home, home.config_file).exit_code == 0
    assert not os.path.lexists(history)
    assert list((tmp_path / "backups").rglob(history.name))


async def test_a_sound_history_stays_where_it_is(tmp_path: Path) -> None:
    """The control: a file that cannot be read for another reason is not moved."""
    memory = JsonlMemory(tmp_path, clock=ManualClock())
    key = SessionKey("matrix", "!r:hs.test")
    await memory.append_message(str(key), Message(role="user", content="x", id="1"))
    (tail,) = (await memory.load_history(str(key))).messages
    assert tail.content == "x"
    assert [path.name for path in (tmp_path / "sessions").iterdir() if "set-aside" in path.name] == []
