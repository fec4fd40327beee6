"""
The process that is killed: a turn that changes files, step by step, with a journal as the gateway keeps it.

Each step's start is noted with what the tools know, then the tool runs, then its result is noted. The next life
goes on there: a step that had started without a result is run again, because the tools say that it may be.
Every call of the operating system in the code of the tools is a moment at which the process can die.
``python -m tests.kill.files_child`` loads everything once and forks a life for each line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import anyio

from agent_core import confined_files, files
from agent_core.models import ToolResult
from agent_core.tools.files import change_journal, journaled_files, roots
from tests.file_tools_world import FileDesk
from tests.kill.points import Striker, append_line

STEPS = 14
_NAMES = ("a", "b", "sub/c", "sub/deep/d")
_STRUCK = ("fsync", "link", "mkdir", "open", "rename", "replace", "unlink", "write", "fchmod", "close")


def script(seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Calls of which none may be made twice: each edit adds a sign, and everything else depends on what is there."""
    chance, there = random.Random(seed), []
    calls: list[tuple[str, dict[str, Any]]] = []
    while len(calls) < STEPS:
        free = [name for name in _NAMES if name not in there]
        kind = chance.choice(["write", "edit", "edit", "edit", "move", "delete"])
        if kind == "write" and free:
            name = chance.choice(free)
            there.append(name)
            calls.append(("write_file", {"path": name, "content": f"{len(calls)} END"}))
        elif kind == "edit" and there:
            calls.append(("edit_file", {"path": chance.choice(there), "old": "END", "new": "+END"}))
        elif kind == "move" and there and free:
            name, other = chance.choice(there), chance.choice(free)
            there[there.index(name)] = other
            calls.append(("move_file", {"path": name, "to": other}))
        elif kind == "delete" and len(there) > 1:
            name = chance.choice(there)
            there.remove(name)
            calls.append(("delete_file", {"path": name}))
    return calls


class _StruckOs:
    """`os`, with a moment before and after each call."""

    def __init__(self, strike: Striker) -> None:
        self._strike = strike

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name not in _STRUCK:
            return found

        def struck(*arguments: Any, **named: Any) -> Any:
            self._strike(f"{name}.before")
            result = found(*arguments, **named)
            self._strike(f"{name}.after")
            return result

        return struck


async def _live(home: Path, seed: int, strike: Striker, defect: str) -> None:
    journal = home / "journal"
    noted = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    turn = "" if defect == "nameless" else "turn"
    desk = FileDesk(home, turn=turn)
    for number, (name, arguments) in enumerate(script(seed)):
        mine = [line for line in noted if line["number"] == number]
        if mine:
            desk.tools["read_file"].restore(mine[-1]["state"])
        if any("result" in line for line in mine):
            continue
        if mine:
            assert desk.tools[name].repeatable
        else:
            append_line(journal, json.dumps({"number": number, "state": desk.tools["read_file"].state()}))
        strike("tool.before")
        result: ToolResult = await desk(name, **arguments)
        strike("tool.after")
        state = desk.tools["read_file"].state()
        told = {"number": number, "state": state, "result": result.content, "error": result.is_error}
        append_line(journal, json.dumps(told))


def _life(told: dict[str, Any]) -> None:
    home = Path(told["home"])
    strike = Striker(told.get("where", ""), Path(told["trace"]) if told.get("trace") else None)
    for module in (confined_files, files, change_journal, roots, journaled_files):
        module.os = _StruckOs(strike)
    anyio.run(_live, home, told["seed"], strike, told.get("defect", ""))


def main() -> None:
    """One life for each line."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                _life(json.loads(line))
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    main()
