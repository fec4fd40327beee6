"""Answers of operations in conversations, as Markdown for a phone. No content can imitate our own text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agent_core.operation import Who
from agent_core.text import one_line

_RECEIPT_CHARS = 120
_REFUSED_SHOWN = 20
_PATH_CHARS = 200
_OUTCOMES = {
    "running": "goes on",
    "done": "done",
    "failed": "failed",
    "unknown": "outcome unknown: it was cut off",
}
_COMMAND_ENDS = ("Exit status ", "Ended ")
"""How the result of a command begins; what it has printed follows."""
_CHANGES = {"write": "written", "edit": "edited", "move": "moved", "delete": "deleted", "undo": "undone"}
Row = Mapping[str, Any]


def usage_text(answer: Row, who: Who) -> str:
    """Today's costs and all of them; for the owner also by purpose, and the budget."""
    days = answer["days"]
    lines = [
        f"{'All conversations' if who is Who.OWNER else 'This conversation'}:",
        "",
        f"- today: {about_usage(answer['rows'][-1])}",
        f"- the last {days} days: {about_usage(answer['total'])}",
    ]
    if who is Who.OWNER:
        parts = sorted(f"{row['name']} {about_usage(row)}" for row in answer["purposes"])
        lines += [f"- by purpose: {_and_list(parts)}"] if len(parts) > 1 else []
        lines += _budget(answer["budget"])
    return "\n".join(lines)


def about_usage(row: Row) -> str:
    """Tokens, and money where it is known."""
    tokens, calls = row["prompt_tokens"] + row["completion_tokens"], row["calls"]
    text = f"{tokens:,} tokens in {calls:,} {'call' if calls == 1 else 'calls'}"
    return text if row["cost_usd"] is None else f"{text}, {row['cost_usd']:.2f} USD"


def _budget(budget: Row) -> list[str]:
    parts = []
    tokens, usd = budget["tokens"], budget["usd"]
    if tokens["limit"] is not None:
        parts.append(f"{tokens['spent']:,} of {tokens['limit']:,} tokens")
    if usd["limit"] is not None:
        parts.append(f"{usd['spent']:.2f} of {usd['limit']:.2f} USD")
    return [f"- today's budget: {_and_list(parts)}; a new one {budget['opens']}"] if parts else []


def changes_text(answer: Row, _who: Who) -> str:
    """The changes of files, and the files that commands have made."""
    made = [f"- `{one_line(path, _PATH_CHARS).replace('`', chr(39))}`" for path in answer["made_by_commands"]]
    lists = {
        "The newest file changes:": [_change(row) for row in answer["changes"]],
        "Made or changed by commands, without earlier versions:": made,
    }
    texts = ["\n".join([title, "", *lines]) for title, lines in lists.items() if lines]
    return "\n\n".join(texts) or "I have changed no files."


def _change(row: Row) -> str:
    came = f" from `{row['from']}`" if row["from"] else ""
    undoes = f" (change {row['undoes']})" if row["undoes"] else ""
    begun = "" if row["made"] else ", not finished"
    path = row["path"].replace("`", "'")
    return f"- {row['id']}: `{path}` {_CHANGES[row['what']]}{came}{undoes}, {_time(row['at'])}{begun}"


def undo_text(answer: Row, _who: Who) -> str:
    """The outcome of an undo."""
    return f"Done: change {answer['undoes']} is undone. `!files undo {answer['id']}` takes that back."


def receipts_text(answer: Row, who: Who) -> str:
    """The effects of tools."""
    owner = who is Who.OWNER
    where = "in the last 90 days" if owner else "here"
    lines = [about_receipt(row, owner=owner) for row in answer["rows"]]
    if not lines:
        return f"I have not used any tool with an effect {where}."
    return "\n".join(["What I have done, newest first:", "", *lines])


def about_receipt(row: Row, *, owner: bool) -> str:
    """
    Describe an effect as a list item that cannot imitate our own text.

    ``owner``: The owner reads it; others do not undo changes of files.
    """
    from agent_core.tools.execution import call_in_words
    from gateway.store.model import BACKGROUND_COMMAND

    at = f"{datetime.fromisoformat(row['at']).astimezone():%d %b %H:%M %Z}" if row["at"] else "at some time"
    whose = f", for `{_plain(row['asked_by'])}`" if owner else ""
    parts = [f"{at}: `{_plain(call_in_words(row['tool'], row['arguments']))}`{whose}"]
    parts.append(_command_end(row) or _OUTCOMES[row["outcome"]])
    if row["tool"] == BACKGROUND_COMMAND and row["result"]:
        parts.append(f"`{_plain(row['result'])}`")
    if row["origins"]:
        parts.append(f"after reading {row['origins']}")
    if row["approved_by"]:
        parts.append(f"approved by `{_plain(row['approved_by'])}`")
    if row["undo"]:
        parts.append(f"undo: {_undone_here(row['undo'], owner=owner)}")
    return "- " + "; ".join(parts)


def _undone_here(undo: str, *, owner: bool) -> str:
    """The way to undo something in a chat, instead of at the machine."""
    match undo.split():
        case ["squidbot", "cron", "remove", job]:
            return f"`!remind cancel {_plain(job)}`"
        case ["squidbot", "cron", change, job]:
            return f"tell me to {_plain(change)} `{_plain(job)}`"
        case ["squidbot", "jobs", "stop", job]:
            return f"`!jobs stop {_plain(job)}`"
        case ["squidbot", "files", "undo", number]:
            return f"`!files undo {_plain(number)}`" if owner else "ask my owner"
        case ["squidbot", "memory", "undo", scope, "--to", version]:
            where = ", in that conversation" if owner and scope != "owner" else ""
            return f"`!memory undo {_plain(version)}`{where}"
    return f"`{_plain(undo)}`"


def _command_end(row: Row) -> str:
    """The end of a command that was carried out and did not succeed; empty for all else."""
    if row["tool"] != "shell" or row["outcome"] != "done":
        return ""
    end = row["result"].partition(". ")[0].rstrip(".")
    return f"{end[:1].lower()}{end[1:]}" if end.startswith(_COMMAND_ENDS) and end != "Exit status 0" else ""


def jobs_text(answer: Row, _who: Who) -> str:
    """The background jobs of a person."""
    lines = [f"- {_job(row)}" for row in answer["jobs"]]
    if not lines:
        return "You have no running background job here, and none has ended in the last week."
    return "\n".join(["Your background jobs, newest first:", "", *lines])


def job_text(answer: Row, _who: Who) -> str:
    """A background job and its output."""
    return f"{_job(answer['job'])}\n\n{answer['output']}"


def _job(row: Row) -> str:
    what = one_line(row["name"] or row["text"] or "", 80)
    kind, at = "command, " if row["command"] else "", _time(row["started_at"])
    return f"{row['id']}: {kind}{row['state_text']}, started {at}" + (f": {what}" if what else "")


def stop_text(answer: Row, _who: Who) -> str:
    """The outcome of stopping a job."""
    return f"`{answer['id']}` {'is stopped' if answer['changed'] else 'had ended before'}."


def grants_text(answer: Row, _who: Who) -> str:
    """The grants in effect."""
    lines = [_grant(row) for row in answer["rows"]]
    return "\n".join(["These grants are in effect:", "", *lines] if lines else ["There are no grants."])


def _grant(row: Row) -> str:
    from gateway.turns.questions.question_text import safe_line

    until = datetime.fromisoformat(row["until"]).strftime("%H:%M on %d %B")
    where = f"in `{safe_line(row['conversation'])}`" if row["conversation"] else "everywhere"
    where = "here" if row["is_here"] else where
    once = ", for this job alone" if row["turn"] else ""
    what = f": `{safe_line(row['what'])}`" if row["what"] and row["kind"] == "call" else ""
    people = ", ".join(f"`{safe_line(each)}`" for each in row["people"])
    return (
        f"- `{row['id']}`: {row['covers']}{what}, for {people} {where}, until {until}{once}; "
        f"given by `{safe_line(row['given_by'])}`"
    )


def watch_text(answer: Row, _who: Who) -> str:
    """What is watched from now on."""
    return (
        f"`{answer['job']['id']}` {_watched(answer['job'])}. The first look is the base line; I say what is "
        "new from then on."
    )


def watches_text(answer: Row, _who: Who) -> str:
    """What is watched, each with why the last look failed."""
    lines = []
    for row in answer["jobs"]:
        failed = f" (the last look failed: {one_line(row['note'], 120)})" if row["note"] else ""
        lines.append(f"- `{row['id']}` {_watched(row)}{failed}")
    return "\n".join(lines or ["I watch nothing. `!watch https://… every 2h` tells you what is new there."])


def _watched(row: Row) -> str:
    from gateway.turns.questions.question_text import safe_line

    return safe_line(row["when"])


def console_text(answer: Row, _who: Who) -> str:
    """The link to the console."""
    where = "" if answer["url"].startswith("https:") else ", on the machine where I run"
    return f"Open this within two minutes{where}. It counts once.\n\n{answer['url']}"


def allow_text(answer: Row, _who: Who) -> str:
    """The outcome of `!allow`."""
    from gateway.turns.questions.question_text import safe_line

    who, messages = f"`{safe_line(answer['address'])}`", answer["messages"]
    if not answer["allowed"]:
        return f"{who} may not write to me any more."
    kept = "1 message that I kept" if messages == 1 else f"{messages} messages that I kept"
    told = f" I answer {kept}." if messages else " I have kept no message of theirs."
    told = " I accept their invitation." if answer["invitations"] and not messages else told
    return f"{who} may write to me now ({_and_list(list(answer['channels']))}).{told}"


def refusals_text(answer: Row, _who: Who) -> str:
    """The people who were refused, when and why."""
    from gateway.turns.questions.question_text import safe_line

    rows = answer["rows"]
    if not rows:
        return "I have refused nothing in the last days."
    lines = [
        f"- **{row['name']}**, {_time(row['accepted_at'])}, `{safe_line(row['sender'])}` "
        f"by {row['channel']}: {(row['error'] or '').replace('_', ' ')}"
        for row in rows[:_REFUSED_SHOWN]
    ]
    if len(rows) > _REFUSED_SHOWN:
        lines.append(f"- and {len(rows) - _REFUSED_SHOWN} older ones")
    end = "`!allow ADDRESS` lets somebody in; what I kept of them is answered."
    return "\n".join(["These I did not answer, newest first:", "", *lines, "", end])


def _time(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M %Z}"


def _plain(text: str) -> str:
    words = " ".join(text.split())
    return one_line("".join(char for char in words if char.isprintable() and char != "`"), _RECEIPT_CHARS)


def _and_list(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
