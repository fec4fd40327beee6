"""
The text of a question about a tool call, a draft or a quarantined message: the whole of it, and whose idea it
may be. Pure. The first lines fit a phone; no line of ours is longer than 60 characters, names aside. What is
too long goes into a file whose size and SHA-256 end the message. A person sees every character (`visible`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any

from agent_core.language import _, gettext_noop, list_of, show_time
from agent_core.messages import InboundMessage, OutboundMessage
from agent_core.models import ToolCall
from agent_core.provenance import KEPT, Origins, describe
from agent_core.text import one_line, short_hash, shorten_hashes
from agent_core.tools.forms import Form
from agent_core.tools.grants import describe_scope as grant_text
from gateway.store.model import InboxRow, OutboxRow, Question
from gateway.store.sql.quarantine_after_restore import RESTORED
from gateway.store.states import InboxState, OutboxState

Calls = Sequence[tuple[ToolCall, str]]
"""The calls of a question, each with what its tool shows of it."""
_JOINERS = "\u200c\u200d"
_SELECTORS = "\ufe0e\ufe0f"
_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Letters and marks by their class, and nothing to the eye."""
_TICKS = re.compile("`+")
_SHORTEST_ARGUMENT = 200

_DRAFT = {
    OutboxState.SENT: gettext_noop("is approved and was sent."),
    OutboxState.DEAD: gettext_noop("failed for good and is not sent."),
    OutboxState.UNKNOWN: gettext_noop("was approved; it is unknown whether it arrived."),
    OutboxState.HELD: gettext_noop("still waits."),
}
_MESSAGE = {
    InboxState.QUARANTINED: gettext_noop("still waits."),
    InboxState.IGNORED: gettext_noop("is rejected: I do not answer it."),
}


def is_undecided(item: OutboxRow | InboxRow) -> bool:
    """Return True if the item is undecided."""
    return item.state in (OutboxState.HELD, InboxState.QUARANTINED)


def item_outcome(name: str, item: OutboxRow | InboxRow | None) -> str:
    """The outcome of an item, from its state alone."""
    error = (item.error if item is not None else None) or ""
    if item is None:
        told = gettext_noop("is gone.")
    elif isinstance(item, InboxRow):
        told = _MESSAGE.get(item.state, gettext_noop("is approved, and I answer it."))
        if error == "quarantine_expired":
            told = gettext_noop("has waited too long and was deleted.")
    else:
        told = _DRAFT.get(item.state, gettext_noop("is approved and on its way."))
        if item.state is OutboxState.DEAD and error.startswith("rejected"):
            told = gettext_noop("is rejected: I do not send it.")
    return f"`{name}` {_(told)}"


def reason_text(reason: str | None) -> str:
    """A reason constant as words."""
    if reason == RESTORED:
        return _("it came after the backup that I was restored from, so I may have answered it then")
    return _((reason or gettext_noop("no reason given")).replace("_", " "))


def visible(text: str) -> str:
    """
    A text in which every character is visible, so that people approve what they see.

    What has no form, or changes the order in which others are shown, is written as its code point. Line
    breaks stay, and joiners and variation selectors where they join: between characters that are not ASCII.
    """
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    padded = f"\n{text}\n"
    return "".join(
        char if _is_seen(char, before, after) else f"‹U+{ord(char):04X}›"
        for before, char, after in zip(padded, padded[1:], padded[2:], strict=False)
    )


def _is_seen(char: str, before: str, after: str) -> bool:
    if char == "\n":
        return True
    if char in _JOINERS:
        return not before.isascii() and not after.isascii()
    if char in _SELECTORS:
        return not before.isascii()
    selector = "\ufe00" <= char <= "\ufe0d" or "\U000e0100" <= char <= "\U000e01ef"
    return char.isprintable() and char not in _BLANK and not selector


def excerpt(text: str, room: int, *, hashed: bool = True) -> str:
    """A text with every character visible; of a long one both ends, its size and, ``hashed``, SHA-256."""
    shown = visible(text.strip())
    if len(shown) <= room:
        return shown
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    end, of = room // 3, f", SHA-256 {short_hash(digest)}" if hashed else ""
    return "\n".join(
        [
            shown[: room - end].rstrip(),
            _("[… {n} characters are not shown here …]", n=len(shown) - room),
            shown[-end:].lstrip(),
            _("[{n} characters in all{digest}]", n=len(text), digest=of),
        ]
    )


def safe_line(text: str, most: int = 80) -> str:
    """The beginning of a text, in one line, with nothing in it that clients show in another way."""
    return one_line(visible(" ".join(text.split())), most).replace("`", "'")


def extra_fields(message: InboundMessage | OutboundMessage, *, sender: str) -> dict[str, str]:
    """
    Return what an approval covers besides the text, by name.

    These are the recipient if it is not ``sender``, recipients of copies, the subject, who else has got it,
    words of others in it, and files.
    """
    context = message.context
    told: dict[str, str] = {}
    if context.reply_to and context.reply_to != sender:
        told[_("The answer goes to")] = context.reply_to
    if context.cc:
        told[_("With a copy to")] = ", ".join(context.cc)
    if isinstance(message, InboundMessage):
        if context.subject:
            told[_("Subject")] = context.subject
        if context.also_to:
            told[_("Also to")] = ", ".join(context.also_to)
        for number, each in enumerate(message.background, 1):
            told[_("{n}. {kind}, from {sender}", n=number, kind=_(each.kind), sender=each.sender)] = each.text
    if message.attachments:
        told[_("Files")] = ", ".join(file.name for file in message.attachments)
    return told


def quote(text: str, room: int, *, hashed: bool = True) -> str:
    """A text as a quotation, see `excerpt`; nothing in it can look like our own words."""
    return "\n".join(
        f"> {line}" for line in (excerpt(text, room, hashed=hashed) or _("(nothing)")).split("\n")
    )


def fenced_arguments(
    arguments: Mapping[str, str],
    room: int,
    *,
    most: int = 20,
    hashed: bool = True,
    indented: bool = True,
) -> str:
    """
    Render a call's arguments verbatim, without effect of markup.

    Each has its own share of the room, so that none pushes another out of sight, and is indented, so that it
    cannot imitate one. More than ``most`` are cut together.
    """
    each = max(_SHORTEST_ARGUMENT, room // max(1, len(arguments)))
    told = [
        f"{f'{safe_line(key)}: ' if key else ''}{excerpt(value, each, hashed=hashed)}".replace(
            "\n", "\n    " if indented else "\n"
        )
        for key, value in arguments.items()
    ]
    if len(told) > most:
        rest = "\n".join(told[most:])
        told = [
            *told[:most],
            _("and {n} more: {text}", n=len(told) - most, text=excerpt(rest, each, hashed=hashed)),
        ]
    text = "\n".join(told) or _("(nothing)")
    longest = max((len(run) for run in _TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


_QUOTED_CHARS = 600
_QUOTED_LINES = 12
_FEW_SOURCES = 2
_PURPOSES = {
    "shell": gettext_noop("to run in the workspace"),
    "run_in_background": gettext_noop("to run in the background"),
    "start_job": gettext_noop("to start a background job"),
    "write_file": gettext_noop("to write a file"),
    "edit_file": gettext_noop("to edit a file"),
    "move_file": gettext_noop("to move a file"),
    "delete_file": gettext_noop("to delete a file"),
    "memory_write": gettext_noop("to change my memory"),
    "send_message": gettext_noop("to send a message"),
    "send_file": gettext_noop("to send a file"),
    "web_fetch": gettext_noop("to fetch a page"),
    "schedule": gettext_noop("to change the schedule"),
}
_MAIN = {
    "shell": "command",
    "run_in_background": "command",
    "web_fetch": "url",
    "write_file": "path",
    "edit_file": "path",
    "delete_file": "path",
    "send_message": "to",
}
"""The argument that is shown first, without its name."""
_YOUR_IDEA = gettext_noop("It may not be your idea: I was shown {shown}.")
_THEIR_IDEA = gettext_noop("It may not be their idea: I was shown {shown}.")
_BY_MAIL, _BY_REPLY = (
    gettext_noop("{answers} in the first line"),
    gettext_noop("{answers} in a reply to this, or ✅ / ❌"),
)
_BY_SIGN = gettext_noop("{answers}, or ✅ / ❌")
_LISTED_CHARS = 56
"""Of a call in a list: a line of a phone, without its number."""
_NAME_CHARS = 200
"""The most characters of a source's name."""


def asking_text(
    question: Question,
    *,
    zone: tzinfo | None,
    email_style: bool,
    is_attached: bool = True,
    spared_by: str = "",
    asked_by: str = "",
    is_group: bool = False,
) -> str:
    """
    Render a question about calls. ``spared_by`` names commands that end its reason for the reader.

    ``is_attached``: `attached_text` goes with it, with whole hashes; ``asked_by`` tells the owner who asked
    for it. In a group a word counts only as a reply.
    """
    name, offer = question.name, question.offer
    whole = attached_text(question)
    calls = [(call, shorten_hashes(review)) for call, review in question.calls]
    several = len(calls) > 1
    told, is_short = _form_lines(calls), bool(whole) and is_attached
    room = max(_QUOTED_CHARS, 2 * len(whole) * max(1, len(told)))
    everything = fenced_arguments(told, room, most=len(told))
    shown = fenced_arguments(told, _QUOTED_CHARS, hashed=False) if is_short else everything
    origins, idea = _others(question), _THEIR_IDEA if asked_by else _YOUR_IDEA
    few = len(origins) <= _FEW_SOURCES
    why = "" if asked_by else _("I always ask before this.")
    if origins:
        why = _reason(origins, idea)
    if question.again:
        why = f"{_again_because(calls[0][0])}\n\n{why}".rstrip()
    answers = _("`yes` / `no` / `yes for an hour`") if offer else _("`yes` / `no`")
    answers = _("{answers} to all of them", answers=answers) if several else answers
    commands = f"`!approve {name}`, `!reject {name}`" + (f", `!grant {name} 1h`" if offer else "")
    spared_by = spared_by if origins else ""
    parts = [
        _("**{name}**: I need your approval {purpose}:", name=name, purpose=_purpose(calls)),
        _("Asked by {person}.", person=asked_by) if asked_by else "",
        _list_of(calls) if several else shown,
        _("All of it is in the file `{name}`.", name=f"{name}.txt") if is_short else "",
        why,
        _(_BY_MAIL if email_style else _BY_REPLY if is_group else _BY_SIGN, answers=answers),
        _("An hour covers {scope}.", scope=grant_text(offer)) if offer else "",
        _("It waits until {time}.", time=_time(question.until, zone)),
        _("Also: {commands}", commands=commands),
        _("{commands} spares further questions because of that.", commands=spared_by) if spared_by else "",
        _(idea, shown=describe(origins, most=KEPT)) if not few else "",
        everything if several and not is_short and not _is_listed_whole(calls) else "",
        _digest(f"{name}.txt", whole.encode()) if is_short else "",
    ]
    return "\n\n".join(filter(None, parts))


def _again_because(call: ToolCall) -> str:
    """The reason of a second question; a yes to a command is also about the files that it can read."""
    if _MAIN.get(call.name) == "command":
        return _("Files have changed since your yes, so I ask again.")
    return _("What you approved has changed since, so I ask again.")


def _reason(origins: Origins, idea: str) -> str:
    if len(origins) <= _FEW_SOURCES:
        return _(idea, shown=describe(origins, dated=False))
    return _("Asked because of {n} sources, see below.", n=len(origins))


def _digest(name: str, content: bytes) -> str:
    digest = short_hash(hashlib.sha256(content).hexdigest())
    return _("{name}: {n} bytes, SHA-256 `{digest}`", name=name, n=len(content), digest=digest)


def trust_commands(origins: Origins) -> str:
    """The owner's commands that end a question's reason; commands read a file again after all but its own."""
    files = [each.where for each in origins if each.kind == "file" and not each.where.endswith("/")]
    if not files:
        return _("`!new` or `!trust`")
    if len(files) > 1:
        return _("`!new`, `!trust` or, for those files that are yours, `!trust file NAME`")
    return _(
        "`!new`, `!trust` or, if it is yours, `!trust file {name}`", name=safe_line(files[0], _NAME_CHARS)
    )


def _others(question: Question) -> Origins:
    """The origins without the words of those who ask; a full list is left whole, as it may lack some."""
    origins = question.origins
    if len(origins) >= KEPT:
        return origins
    return tuple(each for each in origins if each.kind != "person" or each.where not in question.people)


def subject_of(question: Question) -> str:
    """The subject of a question by mail, in one line."""
    value = next(iter(_form_lines([(call, "") for call, __ in question.calls]).values()), "")
    purpose = _purpose(question.calls)
    purpose = purpose.removeprefix("to ").removeprefix("before I ").removeprefix("for ")
    return _("Approve? {purpose}: {value}", purpose=purpose.replace("`", ""), value=safe_line(value))


def attached_text(question: Question) -> str:
    """The whole call, for a file that goes with the question; empty if the question itself has it."""
    told = {key: visible(value) for key, value in _form_lines(question.calls).items()}
    each = _QUOTED_CHARS // max(1, len(told))
    lines = sum(value.count("\n") + 1 for value in told.values())
    is_small = len(told) <= 20 and lines <= _QUOTED_LINES
    if is_small and all(len(value) <= each for value in told.values()):
        return ""
    return whole_text(question)


def whole_text(question: Question) -> str:
    """Return all that a question is about, each part under its name; nothing in it can look like another."""
    told = {key: visible(value) for key, value in _form_lines(question.calls).items()}
    parts = [
        f"{safe_line(key)}:\n{value}".removeprefix(":\n").replace("\n", "\n    ")
        for key, value in told.items()
    ]
    return f"{_uses(question.calls)}\n\n".replace("`", "") + "\n\n".join(parts) + "\n"


def form_text(name: str, form: Form, until: datetime, *, zone: tzinfo | None, email_style: bool) -> str:
    """The question of a server, in full and in its own words, and how to answer it."""
    told = {_("it says"): form.message}
    told |= {_("it wants: {name}", name=each.name): each.describe() for each in form.fields}
    if form.address:
        told[_("it wants you to open")] = form.address
    size = sum(len(visible(each)) for each in told.values())
    shown = fenced_arguments(told, (size + 1) * len(told), most=len(told))
    example = _("yes")
    if not form.fields:
        how = _(_BY_MAIL if email_style else _BY_SIGN, answers=_("`yes` / `no`"))
    else:
        example = (
            _("VALUE")
            if len(form.fields) == 1
            else "; ".join(f"{safe_line(one.name)}: …" for one in form.fields)
        )
        how = _("Reply to this message with `{example}`, or `no`", example=example)
    parts = [
        _(
            "**{name}**: the server `{server}` asks, in its words, not mine:",
            name=name,
            server=safe_line(form.asker),
        ),
        shown,
        _("It has to know that before it continues."),
        _("I do not open it. Say yes when you have been there.") if form.address else "",
        how,
        _("It waits until {time}, or your next message.", time=_time(until, zone)),
        _("Your answer goes to that server: no password, no code."),
        _("Also: {commands}", commands=f"`!answer {name} {example}`, `!reject {name}`"),
    ]
    return "\n\n".join(filter(None, parts))


def expired_text(name: str, tool: str) -> str:
    """The text for a question that nobody has decided in time."""
    return _("Nobody answered `{name}` in time; I go on without `{tool}`.", name=name, tool=tool)


def _time(at: datetime, zone: tzinfo | None) -> str:
    return show_time(at.astimezone(zone), gettext_noop("%H:%M on %d %B"))


def _listed(call: ToolCall, review: str) -> str:
    """A call of several in one line, uncut: its tool, and what it is about or its first value."""
    main = call.arguments.get(_MAIN.get(call.name, "")) if review else None
    value = _shown(main) if main else next(iter(_form_lines([(call, "")]).values()), "")
    return f"{call.name}: {value}"


def _list_of(calls: Calls) -> str:
    """The calls of a question, numbered, one line each."""
    lines = [
        f"{number}. {safe_line(_listed(*one), _LISTED_CHARS)}" for number, one in enumerate(calls, start=1)
    ]
    return fenced_arguments({"": "\n".join(lines)}, sum(map(len, lines)) + len(lines), indented=False)


def _is_listed_whole(calls: Calls) -> bool:
    """Return True if the list shows each character of every call."""
    return not any(
        review or len(call.arguments) > 1 or safe_line(line, _LISTED_CHARS) != line
        for call, review in calls
        for line in [_listed(call, review)]
    )


def _uses(calls: Calls) -> str:
    """The tools of a question, with the number of the calls if there are several."""
    names = [f"`{safe_line(name)}`" for name in dict.fromkeys(call.name for call, __ in calls)]
    told, one_tool = list_of(names), len(names) == 1 and len(calls) > 1
    return _("{tool} {n} times", tool=told, n=len(calls)) if one_tool else told


def _purpose(calls: Calls) -> str:
    """The kind of what would be done, in a few words."""
    if len(calls) > 1:
        return _("for {n} calls", n=len(calls))
    known = _PURPOSES.get(calls[0][0].name)
    return _(known) if known else _("before I use {tools}", tools=_uses(calls))


def _form_lines(calls: Calls) -> Mapping[str, str]:
    if len(calls) > 1:
        mixed = len({call.name for call, __ in calls}) > 1
        return {
            f"{number}. {', '.join(filter(None, [tool if mixed or not key else '', key]))}": value
            for number, one in enumerate(calls, start=1)
            for tool in [safe_line(one[0].name)]
            for key, value in (_form_lines([one]) or {"": ""}).items()
        }
    ((call, review),) = calls
    if review:
        return {"": review}
    main = _MAIN.get(call.name, "")
    shown = {key: _shown(value) for key, value in call.arguments.items()}
    return ({"": shown.pop(main)} if shown.get(main) else {}) | shown


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
