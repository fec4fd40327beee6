"""The note that this channel puts into the context of a message, and gets back with the answer."""

from __future__ import annotations

from dataclasses import dataclass

from agent_core.messages import MessageContext


@dataclass(frozen=True, kw_only=True)
class MailRoute:
    """The mail that is answered."""

    uid: int | None = None
    uidvalidity: int | None = None
    message_id: str | None = None
    references: tuple[str, ...] = ()
    own: str = ""  # our address in this conversation, if it is not that of the account
    redirected_by: str = ""  # who asked, where the answer goes to somebody else
    answers: str = ""  # our Message-ID that it answers, until the store has said which message that was
    others_subject: bool = False
    """Its subject may be somebody else's words, and so is that of the answers to it."""
    evidence: str = ""  # what proves its sender


def route_of(context: MessageContext) -> MailRoute:
    """Return the channel's own note."""
    return context.read_route(MailRoute)
