"""
Elicitation: a server asks a person something while it carries out a call. It is the server's own words, so it
is bounded, and nobody is asked for a secret or more than a few times.
"""

from __future__ import annotations

import structlog

from agent_core.tools.forms import FormRefused, form_to_fill_in, link_to_open
from agent_core.tools.mcp.server_connection import ElicitedQuestion
from agent_core.tools.person_port import FormDialogue, FormReply

MAX_QUESTIONS = 3
"""The most questions of one call."""
_log = structlog.get_logger(__name__)


class Elicitation:
    """The questions of one call."""

    def __init__(self, server: str, asker: FormDialogue | None) -> None:
        self._server = server
        self.asker = asker
        self.notes: list[str] = []
        """What became of them, for a model."""
        self._asked = 0

    async def ask(self, question: ElicitedQuestion) -> FormReply:
        """Ask the person a question, if that is allowed."""
        self._asked += 1
        if self._asked > MAX_QUESTIONS:
            reply = FormReply("decline", why=f"it has asked more than {MAX_QUESTIONS} times")
        else:
            reply = await self._put(question)
        if len(self.notes) <= MAX_QUESTIONS:
            done = {"accept": "answered", "decline": "declined", "cancel": "left unanswered"}[reply.action]
            why = f": {reply.why}" if reply.why else ""
            self.notes.append(f"The server asked something during the call, which was {done}{why}.")
        _log.info("mcp.asked", server=self._server, action=reply.action, reason=reply.why)
        return reply

    async def _put(self, question: ElicitedQuestion) -> FormReply:
        try:
            form = (
                form_to_fill_in(self._server, question.message, question.schema)
                if question.address is None
                else link_to_open(self._server, question.message, question.address)
            )
        except FormRefused as error:
            return FormReply("decline", why=str(error))
        if self.asker is None:
            return FormReply("decline", why="there is nobody to ask")
        return await self.asker.ask(form)
