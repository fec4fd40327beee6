"""
The text of a question about a tool call, a draft or a quarantined message: the whole of it, and whose idea it
may be. Pure. The first lines fit a phone; no line of ours is longer than 60 characters, names aside. What is
too long goes into a file whose size and SHA-256 end the message. A person sees every character (`visible`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any

from agent_core.messages import InboundMessage, OutboundMessage
from agent_core.models import ToolCall
from agent_core.provenance import KEPT, Origins, describe
from agent_core.text import one_line, short_hash, shorten_hashes
from agent_core.tools.forms import Form
from agent_core.tools.grants import Scope
from agent_core.tools.grants import describe_scope as grant_text
from gateway.store.model import InboxRow, OutboxRow
from gateway.store.sql.quarantine_after_restore import RESTORED
from gateway.store.states import InboxState, OutboxState

_JOINERS = "\u200c\u200d"
_SELECTORS = "\ufe0e\ufe0f"
_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Letters and marks by their class, and nothing to the eye."""
_TICKS = re.compile("`+")
_SHORTEST_ARGUMENT = 200

_DRAFT = {
    OutboxState.SENT: "is approved and was sent.",
    OutboxState.DEAD: "failed for good and is not sent.",
    OutboxState.UNKNOWN: "was approved; it is unknown whether it arrived.",
    OutboxState.HELD: "still waits.",
}
_MESSAGE = {
    InboxState.QUARANTINED: "still waits.",
    InboxState.IGNORED: "is rejected: I do not answer it.",
}


def is_undecided(item: OutboxRow | InboxRow) -> bool:
    """Return True if the item is undecided."""
    return item.state in (OutboxState.HELD, InboxState.QUARANTINED)


def outcome(name: str, item: OutboxRow | InboxRow | None) -> str:
    """The outcome of an item, from its state alone."""
    error = (item.error if item is not None else None) or ""
    if item is None:
        told = "is gone."
    elif isinstance(item, InboxRow):
        told = _MESSAGE.get(item.state, "is approved, and I answer it.")
        if error == "quarantine_expired":
            told = "has waited too long and was deleted."
    else:
        told = _DRAFT.get(item.state, "is approved and on its way.")
        if item.state is OutboxState.DEAD and error.startswith("rejected"):
            told = "is rejected: I do not send it."
    return f"`{name}` {told}"


def reason_text(reason: str | None) -> str:
    """A reason constant as words."""
    if reason == RESTORED:
        return "it came after the backup that I was restored from, so I may have answered it then"
    return (reason or "no reason given").replace("_", " ")


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
    end = room // 3
    return "\n".join(
        [
            shown[: room - end].rstrip(),
            f"[… {len(shown) - room} characters are not shown here …]",
            shown[-end:].lstrip(),
            f"[{len(text)} characters in all{f', SHA-256 {short_hash(digest)}' if hashed else ''}]",
        ]
    )


def safe_line(text: str, most: int = 80) -> str:
    """The beginning of a text, in one line, with nothing in it that clients show in another way."""
    return one_line(visible(" ".join(text.split())), most).replace("`", "'")


def extra_fields(message: InboundMessage | OutboundMessage, *, sender: str) -> dict[str, str]:
    """
    Return what an approval covers besides the text, by name.

    These are the recipient if it is not ``sender``, recipients of copies, the subject, words of others in it,
    and files.
    """
    context = message.context
    told: dict[str, str] = {}
    if context.reply_to and context.reply_to != sender:
        told["The answer goes to"] = context.reply_to
    if context.cc:
        told["With a copy to"] = ", ".join(context.cc)
    if isinstance(message, InboundMessage):
        if context.subject:
            told["Subject"] = context.subject
        for number, each in enumerate(message.background, 1):
            told[f"{number}. {each.kind}, from {each.sender}"] = each.text
    if message.attachments:
        told["Files"] = ", ".join(file.name for file in message.attachments)
    return told


def quote(text: str, room: int, *, hashed: bool = True) -> str:
    """A text as a quotation, see `excerpt`; nothing in it can look like our own words."""
    return "\n".join(f"> {line}" for line in (excerpt(text, room, hashed=hashed) or "(nothing)").split("\n"))


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
        told = [*told[:most], f"and {len(told) - most} more: {excerpt(rest, each, hashed=hashed)}"]
    text = "\n".join(told) or "(nothing)"
    longest = max((len(run) for run in _TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


_QUOTED_CHARS = 600
_QUOTED_LINES = 12
_FEW_SOURCES = 2
_PURPOSES = {
    "shell": "to run in the workspace",
    "run_in_background": "to run in the background",
    "start_job": "to start a background job",
    "write_file": "to write a file",
    "edit_file": "to edit a file",
    "move_file": "to move a file",
    "delete_file": "to delete a file",
    "memory_write": "to change my memory",
    "send_message": "to send a message",
    "send_file": "to send a file",
    "web_fetch": "to fetch a page",
    "schedule": "to change the schedule",
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
_IDEA = "It may not be {} idea: I was shown"
_BY_MAIL, _BY_REPLY, _BY_SIGN = " in the first line", " in a reply to this", ", or ✅ / ❌"
_LISTED_CHARS = 56
"""Of a call in a list: a line of a phone, without its number."""
_NAME_CHARS = 200
"""As long as the name of a source can be."""


def asking_text(
    name: str,
    call: ToolCall,
    until: datetime,
    *,
    zone: tzinfo | None,
    email_style: bool,
    origins: Origins = (),
    review: str = "",
    is_attached: bool = True,
    offer: Scope | None = None,
    is_again: bool = False,
    also: Sequence[tuple[ToolCall, str]] = (),
    spared_by: str = "",
    people: Collection[str] = (),
    asked_by: str = "",
    is_group: bool = False,
) -> str:
    """
    Render a question. ``spared_by`` names commands that end its reason for the reader.

    ``review`` replaces the bare arguments; ``offer`` is what can be granted; ``is_attached``: `attached_text`
    goes with it, with whole hashes; ``is_again``: the subject changed after a yes; ``also`` are further calls
    of the same answer. ``people`` asked for it; ``asked_by`` tells the owner who they are. In a group a word
    counts only as a reply.
    """
    whole = attached_text(call, review, also)
    review, also = shorten_hashes(review), [(each, shorten_hashes(known)) for each, known in also]
    told, is_short = _form_lines(call, review, also), bool(whole) and is_attached
    room = max(_QUOTED_CHARS, 2 * len(whole) * max(1, len(told)))
    everything = fenced_arguments(told, room, most=len(told))
    shown = fenced_arguments(told, _QUOTED_CHARS, hashed=False) if is_short else everything
    origins, idea = _others(origins, people), _IDEA.format("their" if asked_by else "your")
    few = len(origins) <= _FEW_SOURCES
    if not origins:
        why = "" if asked_by else "I always ask before this."
    elif few:
        why = f"{idea} {describe(origins, dated=False)}."
    else:
        why = f"Asked because of {len(origins)} sources, see below."
    if is_again:
        why = f"{_again_because(call)}\n\n{why}".rstrip()
    answers = "`yes` / `no`" + (" / `yes for an hour`" if offer else "") + (" to all of them" if also else "")
    raw = whole.encode()
    parts = [
        f"**{name}**: I need your approval {_purpose(call, also)}:",
        f"Asked by {asked_by}." if asked_by else "",
        _list_of(call, review, also) if also else shown,
        f"All of it is in the file `{name}.txt`." if is_short else "",
        why,
        f"{answers}{_BY_MAIL if email_style else (_BY_REPLY if is_group else '') + _BY_SIGN}",
        f"An hour covers {grant_text(offer)}." if offer else "",
        f"It waits until {_time(until, zone)}.",
        f"Also: `!approve {name}`, `!reject {name}`" + (f", `!grant {name} 1h`" if offer else ""),
        f"{spared_by} spares further questions because of that." if origins and spared_by else "",
        f"{idea} {describe(origins, most=KEPT)}." if not few else "",
        everything if also and not is_short and not _is_listed_whole(call, review, also) else "",
        f"{name}.txt: {len(raw)} bytes, SHA-256 `{_short_digest(raw)}`" if is_short else "",
    ]
    return "\n\n".join(filter(None, parts))


def _again_because(call: ToolCall) -> str:
    """The reason of a second question; a yes to a command is also about the files that it can read."""
    is_command = _MAIN.get(call.name) == "command"
    what = "Files have changed since your yes" if is_command else "What you approved has changed since"
    return f"{what}, so I ask again."


def _short_digest(content: bytes) -> str:
    return short_hash(hashlib.sha256(content).hexdigest())


def ways_to_spare(origins: Origins) -> str:
    """The owner's commands that end a question's reason; commands read a file again after all but its own."""
    files = [each.where for each in origins if each.kind == "file" and not each.where.endswith("/")]
    if len(files) != 1:
        return "`!new` or `!trust`"
    return f"`!new`, `!trust` or, if it is yours, `!trust file {safe_line(files[0], _NAME_CHARS)}`"


def _others(origins: Origins, people: Collection[str]) -> Origins:
    """The origins without the words of those who ask; a full list is left whole, as it may lack some."""
    if len(origins) >= KEPT:
        return origins
    return tuple(each for each in origins if each.kind != "person" or each.where not in people)


def subject_of(call: ToolCall, also: Sequence[tuple[ToolCall, str]] = ()) -> str:
    """The subject of a question by mail, in one line."""
    value = next(iter(_form_lines(call, "", also).values()), "")
    purpose = (
        _purpose(call, also)
        .removeprefix("to ")
        .removeprefix("before I ")
        .removeprefix("for ")
        .replace("`", "")
    )
    return f"Approve? {purpose}: {safe_line(value)}"


def attached_text(call: ToolCall, review: str = "", also: Sequence[tuple[ToolCall, str]] = ()) -> str:
    """The whole call, for a file that goes with the question; empty if the question itself has it."""
    told = {key: visible(value) for key, value in _form_lines(call, review, also).items()}
    each = _QUOTED_CHARS // max(1, len(told))
    lines = sum(value.count("\n") + 1 for value in told.values())
    is_small = len(told) <= 20 and lines <= _QUOTED_LINES
    if is_small and all(len(value) <= each for value in told.values()):
        return ""
    return whole_text(call, review, also)


def whole_text(call: ToolCall, review: str = "", also: Sequence[tuple[ToolCall, str]] = ()) -> str:
    """Return all that a question is about, each part under its name; nothing in it can look like another."""
    told = {key: visible(value) for key, value in _form_lines(call, review, also).items()}
    parts = [
        f"{safe_line(key)}:\n{value}".removeprefix(":\n").replace("\n", "\n    ")
        for key, value in told.items()
    ]
    return f"{_uses(call, also)}\n\n".replace("`", "") + "\n\n".join(parts) + "\n"


def form_text(name: str, form: Form, until: datetime, *, zone: tzinfo | None, email_style: bool) -> str:
    """The question of a server, in full and in its own words, and how to answer it."""
    told = {"it says": form.message, **{f"it wants: {each.name}": each.describe() for each in form.fields}}
    if form.address:
        told["it wants you to open"] = form.address
    size = sum(len(visible(each)) for each in told.values())
    shown = fenced_arguments(told, (size + 1) * len(told), most=len(told))
    example = "yes"
    if not form.fields:
        how = f"`yes` / `no`{_BY_MAIL if email_style else _BY_SIGN}"
    else:
        example = (
            "VALUE"
            if len(form.fields) == 1
            else "; ".join(f"{safe_line(one.name)}: …" for one in form.fields)
        )
        how = f"Reply to this message with `{example}`, or `no`"
    parts = [
        f"**{name}**: the server `{safe_line(form.asker)}` asks, in its words, not mine:",
        shown,
        "It has to know that before it continues.",
        "I do not open it. Say yes when you have been there." if form.address else "",
        how,
        f"It waits until {_time(until, zone)}, or your next message.",
        "Your answer goes to that server: no password, no code.",
        f"Also: `!answer {name} {example}`, `!reject {name}`",
    ]
    return "\n\n".join(filter(None, parts))


def expired_text(name: str, tool: str) -> str:
    """The text for a question that nobody has decided in time."""
    return f"Nobody answered `{name}` in time; I go on without `{tool}`."


def _time(at: datetime, zone: tzinfo | None) -> str:
    return at.astimezone(zone).strftime("%H:%M on %d %B")


def _listed(call: ToolCall, review: str) -> str:
    """A call of several in one line, uncut: its tool, and what it is about or its first value."""
    main = call.arguments.get(_MAIN.get(call.name, "")) if review else None
    value = _shown(main) if main else next(iter(_form_lines(call, "").values()), "")
    return f"{call.name}: {value}"


def _list_of(call: ToolCall, review: str, also: Sequence[tuple[ToolCall, str]]) -> str:
    """The calls of a question, numbered, one line each."""
    every = [_listed(*one) for one in [(call, review), *also]]
    lines = [f"{number}. {safe_line(one, _LISTED_CHARS)}" for number, one in enumerate(every, start=1)]
    return fenced_arguments({"": "\n".join(lines)}, sum(map(len, lines)) + len(lines), indented=False)


def _is_listed_whole(call: ToolCall, review: str, also: Sequence[tuple[ToolCall, str]]) -> bool:
    """Return True if the list shows each character of every call."""
    return not any(
        each or len(one.arguments) > 1 or safe_line(_listed(one, each), _LISTED_CHARS) != _listed(one, each)
        for one, each in [(call, review), *also]
    )


def _uses(call: ToolCall, also: Sequence[tuple[ToolCall, str]]) -> str:
    """The tools of a question, with the number of the calls if there are several."""
    names = [f"`{safe_line(name)}`" for name in dict.fromkeys(one.name for one in _calls(call, also))]
    told = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{told} {len(also) + 1} times" if len(names) == 1 and also else told


def _purpose(call: ToolCall, also: Sequence[tuple[ToolCall, str]]) -> str:
    """The kind of what would be done, in a few words."""
    if also:
        return f"for {len(also) + 1} calls"
    return _PURPOSES.get(call.name) or f"before I use {_uses(call, also)}"


def _calls(call: ToolCall, also: Sequence[tuple[ToolCall, str]]) -> list[ToolCall]:
    return [call, *(one for one, _ in also)]


def _form_lines(call: ToolCall, review: str, also: Sequence[tuple[ToolCall, str]] = ()) -> Mapping[str, str]:
    if also:
        every, mixed = [(call, review), *also], len({one.name for one in _calls(call, also)}) > 1
        return {
            f"{number}. {', '.join(filter(None, [tool if mixed or not key else '', key]))}": value
            for number, one in enumerate(every, start=1)
            for tool in [safe_line(one[0].name)]
            for key, value in (_form_lines(*one) or {"": ""}).items()
        }
    if review:
        return {"": review}
    main = _MAIN.get(call.name, "")
    shown = {key: _shown(value) for key, value in call.arguments.items()}
    return ({"": shown.pop(main)} if shown.get(main) else {}) | shown


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
