"""
Decides which answers are spoken, and which part of them. Only what a model has answered in a conversation
comes here. Questions of approvals, notices, apologies, the results of commands and drafts that wait for the
owner are never spoken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace

from agent_core.media.media_config import SpeakSettings
from agent_core.messages import InboundMessage, OutboundKind, Speech
from agent_core.tools.policy import is_available
from channels.base import Channel
from channels.markup import spoken_text
from gateway.observability.redaction import MASK, Redactor
from gateway.routing.access import Access, Role
from gateway.store.model import SPEECH_CHANNEL
from gateway.store.stores import NewOutbound, Turn
from gateway.turns.transcription import is_sound_type
from gateway.turns.turn_kinds import Plan
from gateway.turns.user_input import session_of


@dataclass(eq=False)
class SpokenAnswers:
    """Adds the row to be spoken to an answer, without configured secrets."""

    settings: SpeakSettings
    _: KW_ONLY
    access: Access
    channels: Mapping[str, Channel]
    redactor: Redactor

    def rows_to_speak(self, turn: Turn, plan: Plan, reply: str, *, parts: int) -> list[NewOutbound]:
        """
        The row to be spoken, for an answer with so many ``parts`` of text; none if it is not spoken.

        It is committed with the answer and made to sound later (`gateway.routing.speech_delivery`).
        """
        settings, message = self.settings, turn.rows[-1].message
        if settings.when == "never" or plan.hold or not parts:
            return []
        channel = self.channels[turn.channel]
        if settings.when == "same" and not any(_is_spoken(row.message, channel) for row in turn.rows):
            return []
        if not channel.capabilities.attachments:
            return []
        if not is_available(settings.allow, session_of(turn, self.access, plan.purpose)):
            return []
        # Markup may stand in the middle of a secret, so what is left without it is looked at, too.
        said = self._masked(spoken_text(self._masked(reply), max_chars=settings.max_chars))
        if not said:
            return []
        owner = any(self.access.decide(row.message).role is Role.OWNER for row in turn.rows)
        return [
            NewOutbound(
                channel=SPEECH_CHANNEL,
                account=message.account,
                session=turn.place,
                text=said,
                kind=OutboundKind.NOTICE,  # an apology would be spoken in its place
                context=replace(message.context, part=parts, speech=Speech(owner=owner)),
            )
        ]

    def _masked(self, text: str) -> str:
        return self.redactor.text(text).replace(MASK, " … ")


def _is_spoken(message: InboundMessage, channel: Channel) -> bool:
    """Return True if a message was spoken; in a mail every sound is a plain file."""
    if channel.capabilities.email_style:
        return any(is_sound_type(file.media_type) for file in message.attachments)
    return bool(message.context.spoken) and not message.context.others_words
