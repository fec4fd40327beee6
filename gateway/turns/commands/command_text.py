"""The help, and numbers and states in words, for the answers of commands. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agent_core.language import _, gettext_noop, list_of, ngettext
from agent_core.messages import Audience, InboundMessage
from agent_core.models import Message
from agent_core.prompt import words_for_people
from agent_core.text import excerpt
from gateway.store.model import EffectReceipt, ReceiptOutcome
from gateway.system.terminal_text import LOCAL_PARTS
from gateway.turns.commands.command_parsing import nearest
from gateway.turns.commands.command_table import COMMANDS
from gateway.turns.questions.question_text import safe_line

TAKEN_OVER = "[I go on here with what is taken over "
"""How the line begins with which `!continue` goes on with another conversation."""

_CUT_OFF = " with an unknown outcome"
_OUTCOMES = {
    ReceiptOutcome.RUNNING: ("goes on", _CUT_OFF),
    ReceiptOutcome.DONE: ("done", ""),
    ReceiptOutcome.FAILED: ("failed", " without success"),
    ReceiptOutcome.UNKNOWN: ("outcome unknown: it was cut off", _CUT_OFF),
}
"""By itself, and behind the name of the tool of a turn that has ended."""

_WORK = {
    "inbox": {
        "ready": gettext_noop("waiting"),
        "running": gettext_noop("in progress"),
        "quarantined": gettext_noop("kept until you decide (`!approve` lists them)"),
        "dead": gettext_noop("that I could not answer, which I have told the sender (`!console` shows them)"),
    },
    "outbox": {
        "pending": gettext_noop("to be sent"),
        "uncertain": gettext_noop("perhaps sent"),
        "held": gettext_noop("waiting for your approval"),
        "dead": gettext_noop("not delivered (`!console` says why)"),
        "unknown": gettext_noop("that may not have arrived: please decide (`!console` lists them)"),
    },
}
"""What is said of a number of messages or answers that are in a state."""
_STATES = {
    "connecting": gettext_noop("is connecting"),
    "catching_up": gettext_noop("is catching up"),
    "up": gettext_noop("is connected"),
    "down": gettext_noop("is not connected"),
    "failed": gettext_noop("needs you"),
}

_SEEN = gettext_noop(
    "My owner sees that you use me, which tools I use for you and when, but what you say only if you ask for "
    "something that needs the owner's yes."
)
_MORE = gettext_noop("`!help NAME` explains one of them. `/` works in place of `!`.")


def tool_line(receipt: EffectReceipt) -> str:
    """A tool that a turn has used, and whether it succeeded, without its arguments."""
    return f"{receipt.tool}{_OUTCOMES[receipt.outcome][1]}"


def and_list(parts: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return list_of(parts)


def about_parts(report: Mapping[str, Any]) -> list[str]:
    """For the owner: services and queue of a daemon's report, one per line, without the turn that asks."""
    lines = [_("- version {version}", version=report["version"])] if report.get("version") else []
    for name, channel in sorted((report.get("channels") or {}).items()):
        detail = str(channel.get("detail") or "")
        state = _STATES.get(str(channel.get("state")), str(channel.get("state")))
        if name not in LOCAL_PARTS or channel.get("state") == "failed":
            shown = _(LOCAL_PARTS.get(name, name))
            lines.append(f"- {shown[:1].upper()}{shown[1:]} {_(state)}" + (f": {detail}" if detail else ""))
    work = report.get("work") or {}
    for queue, words in (("inbox", _("messages")), ("outbox", _("answers"))):
        counts = Counter(work.get(queue) or {})
        if queue == "inbox":
            counts["running"] -= 1
        counts = +counts
        told = [f"{counts[state]} {_(told)}" for state, told in _WORK[queue].items() if state in counts]
        lines.append(f"- {words}: {and_list(told) or _('nothing waits')}")
    return lines


def for_people(said: Message) -> str:
    """Return a message's text without what was added for the model."""
    is_model = said.role == "assistant" and "<taken_over>" not in said.content
    return said.content if is_model else words_for_people(said.content, said.sender or "")


def help_text(argument: str, *, owner: bool, name: str = "") -> str:
    """
    The commands (``owner``: also those for the owner alone), or any single one.

    ``name`` is that of the bot, in a room where commands need it in front.
    """
    wanted = argument.lower().lstrip("!/").strip("`")
    known = {name: each for name, each in COMMANDS.items() if owner or not each.for_owner}
    if wanted in COMMANDS:
        whose = "" if wanted in known else _(" Only my owner may do that.")
        whose += (
            _(
                " In this room, write my name first: `{name}: !{wanted}`.",
                name=safe_line(name),
                wanted=wanted,
            )
            if name
            else ""
        )
        return f"`!{wanted}`: {_(COMMANDS[wanted].text)}{whose}"
    if wanted:
        near = nearest(wanted)
        meant = _(" Did you mean `!{near}`?", near=near) if near else ""
        return _(
            "There is no `!{wanted}`.{meant} `!help` lists all commands.",
            wanted=safe_line(wanted)[:40],
            meant=meant,
        )
    lines = [_("These are the commands. Send each as a separate message:")]
    if name:
        lines = [
            _(
                "These are the commands. Send each as a separate message, with my name first: "
                "`{name}: !remind tomorrow at 8 TEXT`.",
                name=safe_line(name),
            )
        ]
    for group in dict.fromkeys(each.group for each in known.values() if each.group):
        listed = [f"- `!{name}`: {each.summary}" for name, each in known.items() if each.group == group]
        lines += ["", f"{_(group)}:", "", *listed]
    return "\n".join([*lines, "", _(_MORE) if owner else f"{_(_MORE)} {_(_SEEN)}"])


def stopped_text(message: InboundMessage, *, owner: bool) -> str:
    """The answer to an accepted ``!stop``, with which the queue has noted how many messages it withdrew."""
    count = message.notes.stopped
    if count == 0:
        of = "" if owner or message.audience is Audience.DIRECT else _(" of yours")
        return _("Nothing{of} was waiting or in progress here.", of=of)
    return ngettext("Stopped: I do not answer 1 message.", "Stopped: I do not answer {n} messages.", count)


def excerpt_for_people(said: Message, words: str, limit: int, found: str) -> str:
    """Return the part of a message that was ``found`` with what is beside it, as `for_people` shows it."""
    part = for_people(said.model_copy(update={"content": found})) if found else ""
    return excerpt(for_people(said), words, limit, part)
