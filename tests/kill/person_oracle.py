"""What must be true when people have edited or withdrawn messages and the process has died. Pure but for reading."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from agent_core.messages import SessionKey
from tests.kill.person_child import LEFT_AT, approved, is_stop, taken_back_by
from tests.kill.store_child import events


def problems(folder: Path, *, seed: int) -> list[str]:
    """Everything that is wrong at the end of a story."""
    rows = _rows(folder)
    shown = _shown(folder)
    told = {name for names in _lines(folder / "taken_back") for name in names}
    wrong = []
    for number, (name, session) in enumerate(events(seed)):
        parts = Counter(text["part"] for text in shown if name in text["for"])
        may_go = _may_be_taken_away(seed, number)
        wrong += _judge(name, parts, rows[name], told=name in told, may_go=may_go, left=_left(seed, number))
        if is_stop(number):
            wrong += _stop(name, str(session), rows, shown)
    wrong += _order(shown)
    wrong += _history(folder, rows, seed)
    tools = Counter(name for names in _lines(folder / "tools") for name in names)
    wrong += [f"the tool ran {count} times for {name}" for name, count in tools.items() if count > 1]
    broken = folder / "broken"
    return wrong + (broken.read_text().splitlines() if broken.exists() else [])


def _lines(path: Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _rows(folder: Path) -> dict[str, tuple[int, str, str, str | None]]:
    """Id, session, state and error by name."""
    with closing(sqlite3.connect(f"file:{folder / 'gateway.db'}?mode=ro", uri=True)) as db:
        query = (
            "SELECT native_id, id, session, state, error FROM inbox WHERE native_id NOT LIKE '% withdrawn %'"
        )
        found = db.execute(query).fetchall()
    return {name: tuple(rest) for name, *rest in found}


def _shown(folder: Path) -> list[dict]:
    """What the provider shows, in order; it recognises a key that it has seen."""
    shown, keys = [], set()
    for effect in _lines(folder / "effects"):
        if effect["key"] not in keys:
            keys.add(effect["key"])
            shown.append({**json.loads(effect["text"]), "session": effect["session"]})
    return shown


def _left(seed: int, number: int) -> bool:
    said = events(seed)
    in_its_batch = LEFT_AT + 2  # an amendment comes after the messages of its batch
    return number <= in_its_batch and said[number][1] == said[LEFT_AT][1]


def _may_be_taken_away(seed: int, number: int) -> bool:
    """Whether somebody has asked for it."""
    said = events(seed)
    later = range(number + 1, len(said))
    stopped = any(is_stop(n) and said[n][1] == said[number][1] for n in later)
    return stopped or any(taken_back_by(seed, n) == number for n in later) or _left(seed, number)


def _judge(
    name: str, parts: Counter, row: tuple[int, str, str, str | None], *, told: bool, may_go: bool, left: bool
) -> list[str]:
    """One whole answer, one apology, or nothing because somebody wanted that: never two, never a half."""
    _, _, state, error = row
    doubled = [f"{name}: {part} was shown {count} times" for part, count in parts.items() if count > 1]
    if told and parts:
        return [*doubled, f"{name} was stopped and answered all the same: {dict(parts)}"]
    if state == "ignored":
        unasked = [] if may_go else [f"{name} was {error}, and nobody had asked for it"]
        return doubled + unasked + ([f"{name} was {error} and answered"] if parts else [])
    if left or doubled:
        return doubled
    whole = [{"1": 1, "2": 1}, {"apology": 1}, {"stop": 1}]
    if state not in ("answered", "settled", "dead") or (
        dict(parts) not in whole and not _rejected(parts, state)
    ):
        return [f"{name} is {state} and was answered as {dict(parts)}"]
    return []


def _rejected(parts: Counter, state: str) -> bool:
    """A draft that somebody did not want: the answer is what is left."""
    return state == "answered" and dict(parts) == {"1": 1}


def _stop(name: str, session: str, rows: dict, shown: list[dict]) -> list[str]:
    """A stop says how many it has stopped."""
    if rows[name][2] == "ignored":
        return []
    stops = sorted(row[0] for key, row in rows.items() if is_stop(int(key[1:4])) and row[1] == session)
    at = rows[name][0]
    since = max((other for other in stops if other < at), default=0)
    mine = [row for row in rows.values() if row[1] == session and since < row[0] < at]
    count = sum(error == "stopped" for _, _, _, error in mine)
    said = [text["stopped"] for text in shown if text["for"] == [name]]
    return [] if said in ([], [count]) else [f"{name} said {said} instead of {count}"]


def _order(shown: list[dict]) -> list[str]:
    """
    What was never in quarantine and no draft comes in order.

    A draft is sent when a person has read it, and what was let in was accepted before and is answered after.
    """
    wrong = []
    for session in {text["session"] for text in shown}:
        names = [text["for"][0] for text in shown if text["session"] == session and text["part"] == "1"]
        names = [name for name in names if int(name[1:4]) % 5 != 1]
        if names != sorted(names):
            wrong.append(f"{session}: out of order: {names}")
    return wrong


def _history(folder: Path, rows: dict, seed: int) -> list[str]:
    """The history has what was answered, each once, and nothing that was taken away."""
    wrong = []
    for session in {str(session) for _, session in events(seed)}:
        path = folder / f"history.{SessionKey.parse(session).file_name}"
        lines = _lines(path)
        kept = [content for _, content in lines if not content.startswith("undoes ")]
        answered = {
            name
            for name, row in rows.items()
            if row[1] == session and row[2] in ("answered", "settled") and not is_stop(int(name[1:4]))
        }
        if Counter(kept) != Counter(answered):
            wrong.append(f"{session}: the history has {sorted(kept)} instead of {sorted(answered)}")
        wrong += _taken_out(session, lines, answered, seed)
    return wrong


def _taken_out(session: str, lines: list, answered: set[str], seed: int) -> list[str]:
    """What was taken back goes out of the history once, with its turn or by itself; nothing else does."""
    gone = Counter(content.removeprefix("undoes ") for _, content in lines if content.startswith("undoes "))
    numbers = range(len(events(seed)))
    back = {events(seed)[n][0] for later in numbers if (n := taken_back_by(seed, later)) is not None}
    wrong = [f"{session}: {name} was taken out {count} times" for name, count in gone.items() if count > 1]
    for line_id, name in lines:
        if name in answered:
            undone = line_id in gone or line_id.partition(".")[0] in gone
            if undone is not (name in back):
                wrong.append(f"{session}: {name} is {'not ' * (not undone)}taken out of the history")
    return wrong


def rejected_drafts(folder: Path) -> int:
    """How many drafts a person did not want."""
    with closing(sqlite3.connect(f"file:{folder / 'gateway.db'}?mode=ro", uri=True)) as db:
        texts = db.execute("SELECT payload FROM outbox WHERE error LIKE 'rejected%'").fetchall()
    assert not any(approved(json.loads(json.loads(text)["text"])) for (text,) in texts)
    return len(texts)
