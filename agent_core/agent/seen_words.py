"""
Whose words the model has seen in a run, and which targets of its calls people have named. What is judged is
what the model had seen when it decided on a call: the result of one call is no reason for the next of the
same answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from agent_core.models import Message, Session, ToolDefinition, ToolResult
from agent_core.ports import Clock, ToolPort
from agent_core.prompt import own_part
from agent_core.provenance import Origins, Trust, arriving, join_origins, since, trust_of
from agent_core.tools.effects import Effect, wording_of
from agent_core.tools.policy import Proposal, is_mentioned, is_named, is_said, is_written_as_code

_MAX_UNASKED_FETCHES = 20
"""After so many answers of servers in a turn, links in them name nothing: which are followed tells."""
_WORD = re.compile(r"\w+|[/~$;&]")


class SeenWords:
    """The words of one run: its question, the messages before it, and what tools have given."""

    def __init__(self, session: Session, question: str, clock: Clock) -> None:
        self.session = session
        self.question = question
        self._clock = clock
        self._before: Sequence[Message] = ()
        self._named_by_tools: list[str] = []
        """
        What servers have answered: an address in it may be fetched, too. What other tools find is not of that
        kind, whatever its origins: histories and files hold what the model itself has written.
        """
        self.quoted: Origins = ()
        """Those of what the question quotes and what stands nowhere else in the prompt."""
        self._untrusted_results: list[str] = []
        """What tools have given that anybody may have written."""
        self.decided_on: Origins = ()
        """The origins of what the answer in hand was made of."""
        self._strangers: Sequence[str] = ()
        """The texts in that which anybody may have written."""
        self.origins: Origins = session.origins
        """Whose words the model has been shown in this run, besides the owner's. Never becomes less."""

    def note_prompt(self, before: Sequence[Message]) -> None:
        """Note the messages before the question, whose origins the session knows."""
        self._before = before
        self.note_origins(self.session.named, *(message.sources for message in before))
        if not self.session.quotes:
            return
        # The origins of the line in which a quotation stands, if the model has seen that line.
        known = "\n".join(_words(message.content) for message in before)
        said = [(_words(text), origin) for text, origin in self.session.quotes]
        unknown = [origin for words, origin in said if words.strip() and words not in known]
        self.quoted = join_origins(self.quoted, unknown)
        self.note_origins(self.quoted)

    def note_origins(self, *groups: Origins) -> None:
        """Note that the model has been shown words of these origins."""
        trusted = self.trust_time()
        new = [group if trusted is None else since(group, trusted) for group in groups if group]
        if any(new):
            self.origins = join_origins(self.origins, *new)

    def note_result(self, result: ToolResult, *, fetched: bool) -> None:
        """Note the result of a call; ``fetched``: a server has answered it."""
        self.note_origins(result.origins)
        if fetched and result.origins:
            # The text of a hit may repeat what the model has searched for; its address is the server's.
            named = [result.content] if result.addresses is None else result.addresses
            self._named_by_tools.append("\n".join(named))
        if trust_of(result.origins) > Trust.KNOWN:
            self._untrusted_results.append(result.content)

    def note_decision(self, definitions: Iterable[ToolDefinition]) -> None:
        """Note that the model has decided, on what it was shown until now and on these definitions."""
        shown = [
            each.content
            for each in self._before
            if trust_of(since(each.sources, self.trust_time())) > Trust.KNOWN
        ]
        if not self._is_own_words():
            shown.append(self.question)
        told = [each.text for each in definitions if trust_of(each.origins) > Trust.KNOWN]
        self.decided_on, self._strangers = self.origins, [*shown, *told, *self._untrusted_results]

    def arriving(self, origins: Origins) -> Origins:
        """The origins of what comes in now."""
        return arriving(origins, self._clock.now())

    def trust_time(self) -> datetime | None:
        """Return until when a person has approved earlier content, ignoring a time in the future."""
        trusted = self.session.trusted_before
        if trusted is not None and trusted > self._clock.now():
            return None  # said by a clock that was wrong
        return trusted

    def _is_own_words(self) -> bool:
        """Return True if the current message consists only of words of allowed people."""
        return trust_of((*self.session.origins, *self.quoted)) <= Trust.KNOWN

    async def credit_author(self, proposal: Proposal, tool: ToolPort) -> Proposal:
        """
        Mark a call as the author's idea if the current message contains all of its words.

        Earlier sources then count only if they say the same. A command must stand between backticks, in a
        turn without untrusted words.
        """
        runs = proposal.effect is Effect.EXECUTE
        if trust_of(proposal.origins) <= Trust.KNOWN or not self._is_own_words():
            return proposal
        wording = await wording_of(tool, proposal.call.arguments)
        if wording is None or not wording.texts or (runs and self._untrusted_results):
            return proposal
        said, is_in = own_part(self.question, self.session.account), is_written_as_code if runs else is_said
        if not all(is_in(each, said) and not is_mentioned(each, self._strangers) for each in wording.texts):
            return proposal
        if not all(is_said(each, said) for each in wording.numbers):
            return proposal
        return replace(proposal, origins=join_origins(self.session.origins, self.quoted, wording.kept))

    def has_named(self, effect: Effect, targets: Sequence[str] | None) -> bool:
        """
        Return True if a person has named all targets.

        A fetching tool without a choice of address has no targets and counts as named; a tool that does not
        report its targets (None) does not.
        """
        if not targets:
            return targets is not None and effect is Effect.NETWORK_GET
        said = self._said(effect)
        if effect is not Effect.NETWORK_GET:
            # A word of a sentence is no file that somebody has named, although a file may be called so. And
            # what a stranger's text names as well may be the stranger's idea.
            words = effect is Effect.WRITE_WORKSPACE and any(target.strip().isalpha() for target in targets)
            return not words and all(
                is_named(each, said) and not is_mentioned(each, self._strangers) for each in targets
            )
        from agent_core.tools.web.urls import addresses_in, has_public_name  # noqa: PLC0415 - to fetch pages

        found = self._named_by_tools if len(self._named_by_tools) < _MAX_UNASKED_FETCHES else []
        given = set().union(*map(addresses_in, found))
        return all(self.is_written(each) or (each in given and has_public_name(each)) for each in targets)

    def is_written(self, address: str) -> bool:
        """Return whether a person has written an address that is fetched."""
        from agent_core.tools.web.urls import addresses_in, is_written  # noqa: PLC0415 - only to fetch pages

        return is_written(address, set().union(*map(addresses_in, self._said(Effect.NETWORK_GET))))

    def _said(self, effect: Effect) -> list[str]:
        """Return the texts that may name a target: the owner's, and for fetched addresses anybody's."""
        fetched = effect is Effect.NETWORK_GET
        texts = [(each.content, each.sources) for each in self._before if each.role == "user"]
        texts.append((self.question, (*self.session.origins, *self.quoted)))
        # What a person quotes was not named by that person, and what a stranger has said before by nobody.
        return [
            own_part(text, self.session.account, alone=trust_of(origins) > Trust.KNOWN)
            for text, origins in texts
            if fetched or trust_of(origins) is Trust.OWNER
        ]


def _words(text: str) -> str:
    """Return the words between blanks; mail programs and Markdown change the other characters."""
    return f" {' '.join(_WORD.findall(text))} "
