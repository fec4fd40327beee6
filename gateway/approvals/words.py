"""What is said of items that wait for the owner's yes (`gateway.approvals`). Pure."""

from __future__ import annotations

from gateway.work.rows import InboxRow, OutboxRow
from gateway.work.states import InboxState, OutboxState

__all__ = ["line", "outcome", "quoted", "waits", "words"]

_DRAFT = {
    OutboxState.SENT: "is approved and was sent.",
    OutboxState.DEAD: "was given up and is not sent.",
    OutboxState.UNKNOWN: "was approved; whether it arrived is not known.",
    OutboxState.HELD: "still waits.",
}
_MESSAGE = {
    InboxState.QUARANTINED: "still waits.",
    InboxState.IGNORED: "is rejected: it is not answered.",
}


def waits(item: OutboxRow | InboxRow) -> bool:
    """Whether nobody has decided yet."""
    return item.state in (OutboxState.HELD, InboxState.QUARANTINED)


def outcome(name: str, item: OutboxRow | InboxRow | None) -> str:
    """What became of an item, from its state alone."""
    error = (item.error if item is not None else None) or ""
    if item is None:
        told = "is gone."
    elif isinstance(item, InboxRow):
        told = _MESSAGE.get(item.state, "is let in, and I answer it.")
        if error == "quarantine_expired":
            told = "has waited too long and is gone."
    else:
        told = _DRAFT.get(item.state, "is approved and on its way.")
        if item.state is OutboxState.DEAD and error.startswith("rejected"):
            told = "is rejected: it is not sent."
    return f"`{name}` {told}"


def words(reason: str | None) -> str:
    """A reason constant as words."""
    return (reason or "no reason given").replace("_", " ")


def line(text: str) -> str:
    """The beginning of a text, in one line, without anything that would be shown in another way."""
    flat = " ".join(text.split())
    return (flat[:80] + "…" if len(flat) > 80 else flat).replace("`", "'")


def quoted(text: str, room: int) -> str:
    """A text as a quotation, or its beginning; nothing in it can look like ours."""
    shown = text.strip()
    shown = shown if len(shown) <= room else f"{shown[:room].rstrip()} […]"
    return "\n".join(f"> {line}" for line in shown.splitlines() or ["(nothing)"])
