"""
Sampling: a server asks for a model's answer while it carries out a call, where the owner allows that.

The model is shown the server's words alone: no memory, no history, no tools. What it says goes to the server,
which may bring it back in its result, with the origin of all that the server says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import structlog

from agent_core.errors import AgentError
from agent_core.models import Message
from agent_core.tools.mcp.link import Sampled

MOST_ANSWERS = 5
"""So often one call may have a model answer."""
_MOST_CHARS = 60_000
_CHARS_PER_TOKEN = 4
_log = structlog.get_logger(__name__)

Think = Callable[[Sequence[Message]], Awaitable[Sampled]]
"""Has a model answer, paid by the person for whom a call is made. Raises `AgentError`."""


class SamplingRefused(AgentError):
    """No model answers this server now."""


class Sampling:
    """The answers of one call."""

    def __init__(self, server: str, think: Think) -> None:
        self._server = server
        self._think = think
        self._asked = 0

    async def answer(self, messages: Sequence[Message], max_tokens: int) -> Sampled:
        """
        Have a model answer these messages.

        Raises:
            AgentError: It does not; the text is for the server.
        """
        self._asked += 1
        if self._asked > MOST_ANSWERS:
            raise SamplingRefused(f"a call may have {MOST_ANSWERS} answers")
        if sum(len(message.content) for message in messages) > _MOST_CHARS:
            raise SamplingRefused(f"a model is shown up to {_MOST_CHARS:,} characters")
        try:
            said = await self._think(messages)
        except AgentError as error:
            _log.warning("mcp.not_sampled", server=self._server, reason=str(error))
            raise SamplingRefused("no model can answer now") from error
        _log.info("mcp.sampled", server=self._server, chars=len(said.text))
        text = said.text[: max(1, max_tokens) * _CHARS_PER_TOKEN]
        return replace(said, text=text, cut=len(text) < len(said.text))
