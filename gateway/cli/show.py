"""Answers as text for people: aligned columns and short lines, safe for any terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gateway.plain import plain_line, plain_text

__all__ = [
    "duration",
    "inbox_row",
    "inbox_rows",
    "memory_diff",
    "memory_versions",
    "reindexed",
    "session",
    "sessions",
    "status",
    "table",
    "usage",
]

_WIDEST = 60
_LONGEST_REASON = 200


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they need to be; the last one may be as long as it likes."""
    texts = [[plain_line(str(cell)) for cell in row] for row in rows]
    widths = [
        min(_WIDEST, max(len(row[number]) for row in [list(head), *texts])) for number in range(len(head))
    ]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [list(head), *texts]
    ]
    return "\n".join(lines)


def duration(seconds: float | None) -> str:
    """A span of time in its two largest units."""
    if seconds is None:
        return "-"
    left = int(seconds)
    for size, unit, small, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= size:
            return f"{left // size} {unit} {left % size // small} {name}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{left} s"


def status(report: Mapping[str, Any]) -> str:
    """`Operations.status`."""
    running = bool(report.get("running"))
    lines = [f"squidbot {report['version']}: {'running' if running else 'not running'}"]
    if running:
        memory = f", {report['memory_mb']} MB" if report.get("memory_mb") else ""
        lines[0] += f" (process {report.get('pid')}, up {duration(report.get('uptime_s'))}{memory})"
    channels = report.get("channels") or {}
    for name, one in channels.items():
        said = one["detail"] or one.get("last_error") or ""
        lines.append(
            f"  {name:<10} {one['state']:<12} since {_time(one['since'])}  {plain_line(said)}".rstrip()
        )
    work = report["work"]
    lines.append(f"inbox      {_counts(work['inbox'])}")
    lines.append(f"outbox     {_counts(work['outbox'])}")
    if work.get("oldest_unanswered_s") is not None:
        lines.append(f"the oldest message without an answer is {duration(work['oldest_unanswered_s'])} old")
    if work.get("oldest_unsent_s") is not None:
        lines.append(f"the oldest answer that is not sent is {duration(work['oldest_unsent_s'])} old")
    lines += _models(report.get("models") or {})
    for head, found in (
        ("is tried again:", report.get("trying") or []),
        ("needs you (squidbot inbox show|retry|drop ID):", report.get("stuck") or []),
    ):
        lines += [head] if found else []
        for one in found:
            why = f": {_short(one['why'])}" if one.get("why") else ""
            lines.append(f"  {one['inbox'] or '-'}  {one['channel']}: {one['what']}{why}")
    if report.get("given_up"):
        lines.append(f"given up (apology sent): {report['given_up']}")
    return "\n".join(lines)


def inbox_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """`Operations.inbox_list`."""
    if not rows:
        return "no messages"
    return table(
        ("ID", "STATE", "WHEN", "CHANNEL", "SENDER", "TEXT"),
        [
            (
                row["id"],
                row["state"],
                _time(row["accepted_at"]),
                row["channel"],
                row["sender"],
                row["error"] or row["text"],
            )
            for row in rows
        ],
    )


def inbox_row(answer: Mapping[str, Any]) -> str:
    """`Operations.inbox_show`."""
    row = answer["row"]
    lines = [f"message {row['id']}: {row['state']}"]
    for label, value in (
        ("session", row["session"]),
        ("sender", f"{row['sender']}{'' if row['verified'] else ' (not verified)'}"),
        ("accepted", _time(row["accepted_at"])),
        ("attempts", f"{row['attempts']}, put off {row['deferrals']} times"),
        ("next try", _time(row["next_at"]) if row["next_at"] else None),
        ("error", row["error"]),
    ):
        if value:
            lines.append(f"  {label:<9} {plain_line(str(value))}")
    lines += ["", plain_text(row["text"])]
    for sent in answer["outbound"]:
        said = f" ({sent['error']})" if sent["error"] else ""
        lines += [
            "",
            f"{sent['kind']} {sent['id']}: {sent['state']}{plain_line(said)}",
            plain_text(sent["text"]),
        ]
    return "\n".join(lines)


def sessions(answer: Mapping[str, Any]) -> str:
    """`Operations.sessions_list`."""
    rows = answer["sessions"]
    if not rows:
        return "no sessions"
    shown = table(
        ("SESSION", "MESSAGES", "LAST"),
        [(row["session"], row["messages"], _time(row["last_at"]) if row["last_at"] else "-") for row in rows],
    )
    more = answer["total"] - len(rows)
    return f"{shown}\n… and {more} more (--limit)" if more else shown


def session(answer: Mapping[str, Any]) -> str:
    """`Operations.sessions_show`."""
    lines = [f"{plain_line(answer['session'])}: {answer['messages']} messages"]
    condensed = answer.get("cursor") or 0
    if condensed:
        lines.append(f"  condensed  {condensed}, not yet {answer['unconsolidated']}")
    if answer.get("scope"):
        lines.append(f"  scope      {plain_line(answer['scope'])}")
    if answer.get("prompt"):
        lines.append(f"  prompt     {_prompt(answer['prompt'])}")
    if answer.get("trouble"):
        trouble = answer["trouble"]
        said = f"failed {trouble['failures']} times, again in {duration(trouble['next_try_in_s'])}"
        lines.append(f"  condensing {said}: {plain_line(trouble['error'])}")
    if answer["summary"]:
        lines += ["", "summary of what is no longer in the prompt:", plain_text(answer["summary"])]
    for message in answer["newest"]:
        who = message.get("sender") or message["role"]
        when = f" {_time(message['timestamp'])}" if message.get("timestamp") else ""
        lines += ["", f"{plain_line(who)}{when}", plain_text(message["content"])]
    if answer["messages"] and not answer["newest"]:
        lines += ["", "nothing since it began anew; squidbot sessions export has all of it"]
    if answer["waiting"]:
        lines += ["", "waiting:", inbox_rows(answer["waiting"])]
    return "\n".join(lines)


def _prompt(prompt: Mapping[str, Any]) -> str:
    """What the next prompt would hold."""
    parts = ", ".join(f"{name} {tokens}" for name, tokens in prompt["tokens"].items() if tokens)
    left = f", {prompt['left_out']} messages do not fit" if prompt["left_out"] else ""
    total = f"about {prompt['total_tokens']} of {prompt['limit_tokens']} tokens ({parts})"
    return f"{total}, {prompt['messages']} messages{left}"


def reindexed(answer: Mapping[str, Any]) -> str:
    """`Operations.sessions_reindex`."""
    state = "everything can be searched" if answer["complete"] else "the rest follows in the background"
    return f"{answer['messages']} messages of {answer['sessions']} sessions are in the index; {state}"


def usage(answer: Mapping[str, Any]) -> str:
    """`Operations.usage`."""
    if not answer["rows"]:
        return f"nothing was spent in the last {answer['days']} days"

    def cells(one: Mapping[str, Any]) -> tuple[object, ...]:
        cost = "-" if one["cost_usd"] is None else f"{one['cost_usd']:.4f}"
        return one["calls"], one["prompt_tokens"], one["completion_tokens"], cost

    numbers = ("CALLS", "READ", "WRITTEN", "USD")
    by_purpose = [(purpose, *cells(one)) for purpose, one in answer["by_purpose"].items()]
    by_day = [(one["day"], one["purpose"], one["model"] or "-", *cells(one)) for one in answer["rows"]]
    return "\n\n".join(
        (table(("PURPOSE", *numbers), by_purpose), table(("DAY", "PURPOSE", "MODEL", *numbers), by_day))
    )


def memory_diff(answer: Mapping[str, Any]) -> str:
    """`Operations.memory_diff`."""
    return "\n".join(plain_line(line) for line in answer["diff"]) or "nothing changed"


def memory_versions(answer: Mapping[str, Any]) -> str:
    """`Operations.memory_history`, with what changed in each version."""
    if not answer["versions"]:
        return "nothing was ever written to this memory"
    lines: list[str] = []
    before: list[str] = []
    for one in answer["versions"]:
        now = one["text"].splitlines()
        where = f" in {one['session']}" if one["session"] else ""
        lines.append(f"version {one['version']}, {_time(one['written_at'])}{plain_line(where)}")
        lines += [f"  - {plain_line(line)}" for line in before if line not in now]
        lines += [f"  + {plain_line(line)}" for line in now if line not in before]
        if now == before:
            lines.append("  the same text again")
        before = now
    return "\n".join(lines)


def _models(pools: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Each pool with its models; a model that fails with what it says."""
    lines = []
    for pool, members in pools.items():
        lines.append(f"models     {pool}: {', '.join(plain_line(str(one['name'])) for one in members)}")
        for one in members:
            if one["error"]:
                again = f"; asked again in {duration(one['cooling_s'])}" if one["cooling_s"] else ""
                lines.append(f"  {plain_line(str(one['name']))} fails: {_short(one['error'])}{again}")
    return lines


def _short(text: str) -> str:
    line = plain_line(" ".join(text.split()))
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 1]}…"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "empty"


def _time(text: str | None) -> str:
    """An instant in the time zone of this machine."""
    if not text:
        return "-"
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
