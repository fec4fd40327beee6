"""What the homeserver's answer to a message means for the message."""

from __future__ import annotations

from channels.base import ChannelError, DeliveryFailed, DeliveryUncertain
from channels.matrix.client.api import Answer, problem

__all__ = ["TokenLost", "TooLarge", "send_problem"]

_PASSING_CODES = frozenset({"M_RESOURCE_LIMIT_EXCEEDED", "M_UNRECOGNIZED", "M_LIMIT_EXCEEDED"})


class TokenLost(Exception):
    """The server has refused the token: log in again, then repeat."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__()


class TooLarge(DeliveryFailed):
    """The homeserver finds this message too large."""


def send_problem(answer: Answer) -> ChannelError:  # noqa: PLR0911 - one per kind of answer
    """What a refusal, or something that is no answer at all, means for the message."""
    code = answer.errcode
    if answer.status == 429:
        return problem(answer)
    if code == "M_TOO_LARGE" or (answer.status == 413 and code):
        return TooLarge("the homeserver finds this message too large", errcode=code)
    if answer.status == 413:
        return DeliveryFailed("something before the homeserver finds this message too large")
    if answer.good or answer.status >= 500 or not code:
        return DeliveryUncertain(
            f"the homeserver's answer to the message was lost ({answer.status})",
            retry_after_s=answer.retry_after_s,
        )
    if code in _PASSING_CODES or code.startswith("M_USER_"):
        return problem(answer)
    if answer.status == 403:
        return DeliveryFailed(f"the bot may not write in this room (any more): {answer.error}", errcode=code)
    if answer.status == 404:
        return DeliveryFailed(f"the homeserver does not know this room: {answer.error}", errcode=code)
    if 400 <= answer.status < 500:
        return DeliveryFailed(f"the homeserver refuses this message: {code} {answer.error}", errcode=code)
    return problem(answer)
