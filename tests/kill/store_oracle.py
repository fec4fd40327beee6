"""What a person would have seen and what is left on the disk, against what was said. Pure but for reading."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from agent_core.messages import SessionKey
from tests.kill.store_child import events


def problems(folder: Path, *, seed: int, policy: str) -> list[str]:
    """
    Everything that is wrong at the end of a story.

    With the policy ``key`` the provider recognises a key that it has seen and shows the message once; with
    ``probe`` it shows whatever it is given.
    """
    said: dict[str, list[str]] = {}
    for native_id, session in events(seed):
        said.setdefault(str(session), []).append(native_id)
    shown = _shown(folder, policy)
    wrong = []
    for session, natives in said.items():
        wrong += _judge(session, natives, shown.get(session, []))
        wrong += _history(folder, session, shown.get(session, []))
    tools = Counter(native_id for names in _lines(folder / "tools") for native_id in names)
    wrong += [f"the tool ran {count} times for {name}" for name, count in tools.items() if count > 1]
    broken = folder / "broken"
    wrong += broken.read_text().splitlines() if broken.exists() else []
    database = folder / "gateway.db"
    if database.exists():
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
            (check,) = db.execute("PRAGMA integrity_check").fetchone()
        wrong += [] if check == "ok" else [f"the database: {check}"]
    return wrong


def _lines(path: Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _shown(folder: Path, policy: str) -> dict[str, list[tuple[list[str], str]]]:
    shown: dict[str, list[tuple[list[str], str]]] = {}
    keys: set[str] = set()
    for effect in _lines(folder / "effects"):
        if policy == "key" and effect["key"] in keys:
            continue
        keys.add(effect["key"])
        text = json.loads(effect["text"])
        shown.setdefault(effect["session"], []).append((text["for"], text["part"]))
    return shown


def _judge(session: str, natives: list[str], shown: list[tuple[list[str], str]]) -> list[str]:
    """Each message has both parts of one answer, or one apology, in the order in which they were said."""
    wrong = []
    parts = Counter((name, part) for names, part in shown for name in names)
    for name in natives:
        got = {part: parts[name, part] for part in ("1", "2", "apology") if parts[name, part]}
        if not got:
            wrong.append(f"{session}: {name} is lost")
        elif got not in ({"1": 1, "2": 1}, {"apology": 1}):
            wrong.append(f"{session}: {name} was answered as {got}")
    order = [(name, part) for names, part in shown for name in names[:1]]
    if order != sorted(order):
        wrong.append(f"{session}: out of order: {order}")
    return wrong


def _history(folder: Path, session: str, shown: list[tuple[list[str], str]]) -> list[str]:
    """The history has each answered message once, in order."""
    lines = _lines(folder / f"history.{SessionKey.parse(session).file_name}")
    answered = [name for names, part in shown if part == "2" for name in names]
    if [content for _, content in lines] != answered:
        return [f"{session}: the history has {[content for _, content in lines]} instead of {answered}"]
    return []
