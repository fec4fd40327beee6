"""Texts about drafts and quarantined messages (`review_questions.py`). Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from agent_core.messages import InboundMessage, OutboundMessage
from agent_core.text import one_line, short_hash
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
