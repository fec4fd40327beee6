"""Numbers and states in words, for the answers of commands. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_core.models import Message, Usage
from agent_core.prompt import words_for_people
from agent_core.text import one_line
from agent_core.tools.call_descriptions import call_in_words
from gateway.queue.model import BACKGROUND_COMMAND, EffectReceipt, ReceiptOutcome
from gateway.queue.stores import InboxRow
from gateway.routing.let_in import LetIn
from gateway.system.terminal_text import LOCAL_PARTS
from gateway.turns.approvals.text import safe_line

if TYPE_CHECKING:
    from agent_core.tools.files.change_journal import FileChange

TAKEN_OVER = "[I go on here with what is taken over "
"""How the line begins with which `!continue` goes on with another conversation."""

_REFUSED_SHOWN = 20
_CUT_OFF = " with an unknown outcome"
_OUTCOMES = {
    ReceiptOutcome.RUNNING: ("goes on", _CUT_OFF),
    ReceiptOutcome.DONE: ("done", ""),
    ReceiptOutcome.FAILED: ("failed", " without success"),
    ReceiptOutcome.UNKNOWN: ("outcome unknown: it was cut off", _CUT_OFF),
}
"""By itself, and behind the name of the tool of a turn that has ended."""
_COMMAND_ENDS = ("Exit status ", "Ended ")
"""How the result of a command begins; what it has printed follows."""

_WORK = {
    "inbox": {
        "ready": "waiting",
        "running": "in progress",
        "quarantined": "kept until you decide (`squidbot inbox list --quarantine`)",
        "dead": (
            "that I could not answer, which I have told the sender (`squidbot inbox list --state dead`; "
            "`squidbot inbox retry ID` tries again)"
        ),
    },
    "outbox": {
        "pending": "to be sent",
        "uncertain": "perhaps sent",
        "held": "waiting for your approval",
        "dead": "not delivered (`squidbot status` says why)",
        "unknown": "that may not have arrived: please decide (`squidbot status` lists them)",
    },
}
"""What is said of a number of messages or answers that are in a state."""
_STATES = {
    "connecting": "is connecting",
    "catching_up": "is catching up",
    "up": "is connected",
    "down": "is not connected",
    "failed": "needs you",
}


_UNDONE_HERE = {"squidbot cron remove ": "!remind cancel ", "squidbot jobs stop ": "!jobs stop "}


def about_usage(usage: Usage) -> str:
    """Tokens, and money where it is known."""
    tokens = usage.prompt_tokens + usage.completion_tokens
    text = f"{tokens:,} tokens in {usage.calls:,} {'call' if usage.calls == 1 else 'calls'}"
    return text if usage.cost_usd is None else f"{text}, {usage.cost_usd:.2f} USD"


def about_budget(budget: Mapping[str, Any]) -> list[str]:
    """Describe the rest of a day's budget, in a line; empty without a limit."""
    parts = []
    tokens, usd = budget["tokens"], budget["usd"]
    if tokens["limit"] is not None:
        parts.append(f"{tokens['spent']:,} of {tokens['limit']:,} tokens")
    if usd["limit"] is not None:
        parts.append(f"{usd['spent']:.2f} of {usd['limit']:.2f} USD")
    return [f"- today's budget: {and_list(parts)}; a new one {budget['opens']}"] if parts else []


def about_change(change: FileChange) -> str:
    """One change of a file, in a line."""
    done = {"write": "written", "edit": "edited", "move": "moved", "delete": "deleted", "undo": "undone"}
    came = f" from `{change.source}`" if change.source else ""
    undoes = f" (change {change.undoes})" if change.undoes else ""
    begun = "" if change.made else ", not finished"
    path = change.path.replace("`", "'")
    at = f"{change.at.astimezone():%Y-%m-%d %H:%M %Z}"
    return f"- {change.id}: `{path}` {done[change.kind]}{came}{undoes}, {at}{begun}"


def about_changes(changes: Sequence[FileChange], made: Sequence[str]) -> str:
    """The changes of files, and the files that commands have made."""
    lists = {
        "The newest file changes:": [about_change(change) for change in changes],
        "Made or changed by commands, without earlier versions:": [
            f"- `{one_line(path, 200).replace('`', chr(39))}`" for path in made
        ],
    }
    texts = ["\n".join([title, "", *lines]) for title, lines in lists.items() if lines]
    return "\n\n".join(texts) or "I have changed no files."


def about_receipt(receipt: EffectReceipt, *, owner: bool) -> str:
    """
    Describe an effect as a list item that cannot imitate our own text.

    ``owner``: The undo command is one of this chat; others need somebody at the machine.
    """
    at = f"{receipt.at.astimezone():%d %b %H:%M %Z}" if receipt.at else "at some time"
    whose = f", for `{_plain(receipt.asked_by)}`" if owner else ""
    parts = [f"{at}: `{_plain(call_in_words(receipt.tool, receipt.arguments))}`{whose}"]
    parts.append(_command_end(receipt) or _OUTCOMES[receipt.outcome][0])
    if receipt.tool == BACKGROUND_COMMAND and receipt.told:
        parts.append(f"`{_plain(receipt.told)}`")
    if receipt.origins:
        parts.append(f"after reading {receipt.origins}")
    if receipt.approved_by:
        parts.append(f"approved by `{_plain(receipt.approved_by)}`")
    if undo := receipt.undo:
        for command, here in _UNDONE_HERE.items():
            undo = undo.replace(command, here)
        if owner and undo.startswith("squidbot files undo "):
            undo = f"!{undo.removeprefix('squidbot ')}"
        parts.append(f"undo: `{_plain(undo)}`")
    return "- " + "; ".join(parts)


def _command_end(receipt: EffectReceipt) -> str:
    """The end of a command that was carried out and did not succeed; empty for all else."""
    if receipt.tool != "shell" or receipt.outcome is not ReceiptOutcome.DONE:
        return ""
    end = receipt.told.partition(". ")[0].rstrip(".")
    return f"{end[:1].lower()}{end[1:]}" if end.startswith(_COMMAND_ENDS) and end != "Exit status 0" else ""


def tool_line(receipt: EffectReceipt) -> str:
    """A tool that a turn has used, and whether it succeeded, without its arguments."""
    return f"{receipt.tool}{_OUTCOMES[receipt.outcome][1]}"


def _plain(text: str) -> str:
    words = " ".join(text.split())
    shown = "".join(char for char in words if char.isprintable() and char != "`")
    return one_line(shown, 120)


def and_list(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def about_parts(report: Mapping[str, Any]) -> list[str]:
    """For the owner: services and queue of a daemon's report, one per line, without the turn that asks."""
    lines = [f"- version {report['version']}"] if report.get("version") else []
    for name, channel in sorted((report.get("channels") or {}).items()):
        detail = str(channel.get("detail") or "")
        state = _STATES.get(str(channel.get("state")), str(channel.get("state")))
        if name not in LOCAL_PARTS or channel.get("state") == "failed":
            shown = LOCAL_PARTS.get(name, name)
            lines.append(f"- {shown[:1].upper()}{shown[1:]} {state}" + (f": {detail}" if detail else ""))
    work = report.get("work") or {}
    for queue, words in (("inbox", "messages"), ("outbox", "answers")):
        counts = Counter(work.get(queue) or {})
        if queue == "inbox":
            counts["running"] -= 1
        counts = +counts
        told = [f"{counts[state]} {told}" for state, told in _WORK[queue].items() if state in counts]
        lines.append(f"- {words}: {and_list(told) if told else 'nothing waits'}")
    return lines


def for_people(said: Message) -> str:
    """Return a message's text without what was added for the model."""
    is_model = said.role == "assistant" and "<taken_over>" not in said.content
    return said.content if is_model else words_for_people(said.content, said.sender or "")


def about_let_in(done: LetIn) -> str:
    """The outcome of `!allow`."""
    who = f"`{safe_line(done.address)}`"
    if done.problem:
        return f"{who} {done.problem}. Nothing was done."
    kept = "1 message that I kept" if done.messages == 1 else f"{done.messages} messages that I kept"
    told = f" I answer {kept}." if done.messages else " I have kept no message of theirs."
    told = " I accept their invitation." if done.invitations and not done.messages else told
    return f"{who} may write to me now ({and_list(list(done.channels))}).{told}"


def refused_text(rows: Sequence[InboxRow]) -> str:
    """Return the list of `!allow`: who was refused, when and why."""
    if not rows:
        return "I have refused nothing in the last days."
    lines = [
        f"- **m{row.id}**, {row.message.received_at.astimezone():%Y-%m-%d %H:%M %Z}, "
        f"`{safe_line(row.message.sender.address)}` by {row.message.channel}: "
        f"{(row.error or '').replace('_', ' ')}"
        for row in rows[:_REFUSED_SHOWN]
    ]
    more = [f"- and {len(rows) - _REFUSED_SHOWN} more: `squidbot inbox list --refused`"]
    return "\n".join(
        [
            "These I did not answer, newest first:",
            "",
            *lines,
            *(more if len(rows) > _REFUSED_SHOWN else []),
            "",
            "`!allow ADDRESS` lets somebody in; what I kept of them is answered.",
        ]
    )
