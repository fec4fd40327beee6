"""
What waits for people, and their decisions about it, by whatever way they come. ``a3f2c9`` is a tool call or
what its server asks, ``d12`` the draft with outbox id 12, ``m7`` the quarantined message with inbox id 7. The
owner may decide about all of them. About a call so may whoever asked for what the turn does, with two
exceptions: where the owner has spoken in the turn, too, and where a guest's call reaches beyond their own
conversation (`gateway.turns.questions.tool_questions` asks the owner alone then). For anybody else nothing is
done, and nothing is said. A message decides only if it proves its sender at least as well as those that led
to the question.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from agent_core.language import _, gettext_noop, list_of
from agent_core.memory.scopes import person_name
from agent_core.messages import Attachment, Audience, InboundMessage, Sender, SessionKey
from agent_core.models import Message
from agent_core.text import read_number
from agent_core.tools.grants import Grant
from gateway.routing.access import Access, Role, is_admitted
from gateway.store.model import APPROVED, EDITED, Question
from gateway.store.shared import SHARED
from gateway.store.states import IllegalMove, InboxState, OutboxState
from gateway.store.stores import InboxRow, OutboxRow, Pending, Queue
from gateway.turns.questions.decisions import (
    ENDED,
    WAS,
    Decider,
    Decision,
    Unfit,
    granted_text,
    has_ended,
    is_call,
    is_proven,
    is_review_name,
    outcome,
    place_of,
    proof_level,
    question_subject,
    verdict_on_question,
)
from gateway.turns.questions.question_text import is_undecided, item_outcome, safe_line
from gateway.turns.questions.second_owners import may_decide_for
from gateway.turns.questions.yes_and_no import Sign, read_answer, sign_of

OWNER_QUESTIONS = SessionKey("approvals", "owner")
"""The session of our own questions to the owner; no channel has this name."""
NOTHING_WAITS = gettext_noop("Nothing waits for you under the name `{name}` now.")
"""Of a question that is not known here, or no more."""
NOT_PROVED = gettext_noop(
    "This message was released by hand, and nothing proves who wrote it. So it runs no command and "
    "decides nothing; please send that in a separate message."
)
_LESS_SURE = gettext_noop(
    "`{name}` is not decided: this message proves its sender less well than the one that led to the "
    "question. Answer in the same way in which you wrote that one."
)
_ACCOUNT = "gateway"
_PAGE = 500
_LISTED = 20
_WRITTEN = {"approve": True, "approved": True, "reject": False, "rejected": False}
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CommandReply:
    """
    The reply to a decision, with files and history lines; all may be empty.

    ``refused`` are the conversations whose histories have an answer that nobody will get.
    """

    text: str
    refused: tuple[SessionKey, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    history: tuple[Message, ...] = ()


@dataclass(eq=False, kw_only=True)
class Questions:
    """
    Finds what waits for people and takes their decisions; each may be repeated, and the first counts.

    Args:
        waiting: The names of servers' questions whose call waits.
        now: The time at which grants begin.
    """

    store: Queue
    access: Access
    now: Callable[[], datetime]
    waiting: Container[str] = ()

    # ── finding ──

    async def calls(self) -> list[Question]:
        """Return the undecided questions about calls, oldest first. Raises `StoreUnavailable`."""
        return [one for one in await self.store.approvals.questions() if one.verdict is None]

    async def call_lines(self, message: InboundMessage, *, everywhere: bool) -> list[str]:
        """List the calls that this person may decide, ``everywhere`` or here. Raises `StoreUnavailable`."""
        return [
            f"- `{one.name}`: {question_subject(one, details=message.session in (one.session, *one.places))}"
            for one in await self.calls()
            if not has_ended(one, self.waiting)
            and (everywhere or one.session == message.session or message.session in one.places)
            and self.may_decide(one, message)
        ]

    async def overview(self, message: InboundMessage, *, private: bool) -> str:
        """List what this person may decide, for the owner in ``private`` all. Raises `StoreUnavailable`."""
        items = await self._items() if private else []
        lines = [await self._item_line(name, item) for name, item in items[:_LISTED]]
        lines += [_("- and {n} more", n=len(items) - _LISTED)] if len(items) > _LISTED else []
        lines += await self.call_lines(message, everywhere=private)
        if not lines:
            return _("Nothing waits for your decision.")
        return "\n".join([_("These wait for your decision:"), "", *lines])

    async def _items(self) -> list[tuple[str, OutboxRow | InboxRow]]:
        """Return the pending items, newest first. An answer in parts is one item, named after the first."""
        held: dict[int, OutboxRow] = {}
        for row in await self.store.outbox.rows(states=[OutboxState.HELD], limit=_PAGE):
            held[-row.id if row.inbox_id is None else row.inbox_id] = row
        kept = await self.store.inbox.rows(states=[InboxState.QUARANTINED], limit=_PAGE)
        return [(f"d{row.id}", row) for row in held.values()] + [(f"m{row.id}", row) for row in kept]

    async def _item_line(self, name: str, item: OutboxRow | InboxRow) -> str:
        said = item.message if isinstance(item, InboxRow) else await self.answered_message(item)
        who, text = _("somebody"), ""
        if said is not None:
            sender = said.sender
            who = f"`{safe_line(sender.address)}`"
            if self.access.may_show(said.session, sender.address, verified=sender.verified):
                text = f": {safe_line(item.message.text)}"
        told = {"person": who, "channel": item.message.channel, "text": text}
        if isinstance(item, InboxRow):
            return f"- `{name}`: {_('a quarantined message from {person} by {channel}{text}', **told)}"
        return f"- `{name}`: {_('an answer to {person} by {channel}{text}', **told)}"

    async def answered_message(self, draft: OutboxRow) -> InboundMessage | None:
        """Return the message that a draft answers."""
        found = None if draft.inbox_id is None else await self.store.inbox.row(draft.inbox_id)
        return found[0].message if found else None

    async def item(self, name: str) -> OutboxRow | InboxRow | None:
        """Return a draft or a message that waits, or about which the owner was asked once."""
        found = await self._row(name)
        return found if found is not None and (is_undecided(found) or await self._was_asked(name)) else None

    async def is_open(self, name: str) -> bool:
        """Return True if a draft or a kept message of this name is not decided yet."""
        item = await self._row(name)
        return item is not None and is_undecided(item)

    async def _row(self, name: str) -> OutboxRow | InboxRow | None:
        number = read_number(name[1:]) if is_review_name(name) else None
        if number is None:
            return None
        if name[0] == "d":
            return await self.store.outbox.row(number)
        found = await self.store.inbox.row(number)
        return found[0] if found else None

    async def note_items(self, names: Sequence[str]) -> int:
        """Put down that the owner is asked about these items; return how many were not known."""
        batch = [Pending(_question(name)) for name in names]
        return len(names and await self.store.inbox.accept(OWNER_QUESTIONS.channel, _ACCOUNT, batch, {}))

    async def _was_asked(self, name: str, *states: InboxState) -> bool:
        """Return True if the owner was asked about this message and it is in one of the states, if any."""
        row = await self.store.inbox.find_by_key(OWNER_QUESTIONS.channel, _ACCOUNT, name)
        return row is not None and (row.state in states if states else row.state is not InboxState.IGNORED)

    # ── who may decide ──

    def may_decide(self, question: Question, message: InboundMessage) -> bool:
        """Return True if a message may approve, reject or withdraw the question."""
        return is_proven(question, message) and self._is_decider(question, message)

    def _is_decider(self, question: Question, message: InboundMessage) -> bool:
        decision = self.access.decide(message)
        if decision.role is Role.OWNER:
            return True
        # The question of a background job is asked where the job was wished for.
        places = {place_of(each) for each in (question.session, *question.places)}
        same_place = place_of(message.session) in places
        asked = {person_name(address) for address in question.asked}
        if question.session == SHARED or self._has_owner(
            question, *asked, *map(person_name, question.people)
        ):
            return False  # the owner spoke in that turn, too, and nobody else says yes to what that led to
        if may_decide_for(self.access, question, message):
            return True
        return decision.allowed and same_place and person_name(message.sender.address) in asked

    def _has_owner(self, question: Question, *people: str) -> bool:
        channel = question.session.channel
        return any(self.access.role(channel, one, verified=True) is Role.OWNER for one in people)

    def deciders_text(self, question: Question) -> str:
        """The reply to a yes or no of somebody who may not say it: who may."""
        nobody_else = self._has_owner(question, *question.people, *question.asked)
        who = [] if nobody_else else [f"`{safe_line(one)}`" for one in dict.fromkeys(question.asked)]
        return _(
            "Only {people} may answer `{name}`. It still waits.",
            people=list_of([*who, _("my owner")], " or "),
            name=question.name,
        )

    def weak_proof_reply(self, question: Question, message: InboundMessage) -> str | None:
        """The reply to a message that would decide if it proved its sender better; None for any other."""
        if is_proven(question, message) or not self._is_decider(question, message):
            return None
        _log.warning("tool_approval.less_verified", item=question.name, proof=proof_level(message))
        return _(_LESS_SURE, name=question.name)

    # ── deciding ──

    async def decide(self, name: str, said: Decision, message: InboundMessage) -> CommandReply:
        """Take a decision about whatever has this name; return the reply. Raises `StoreUnavailable`."""
        name = name.strip().strip("`*:").lower()
        if not is_call(name):
            return await self._decide_item(name, said, message)
        return CommandReply(await self._decide_call(name, said, message) or _(NOTHING_WAITS, name=name))

    def verdict(
        self, question: Question, said: Decision, message: InboundMessage
    ) -> tuple[dict[str, Any], Grant | None]:
        """Return the record of a message's decision, and the grant that it gives. Raises `Unfit`."""
        owner = self.access.decide(message).role is Role.OWNER
        return verdict_on_question(question, said, Decider(message.sender.address, owner, self.now()))

    async def _decide_call(self, name: str, said: Decision, message: InboundMessage) -> str | None:
        """The reply to a decision about a call; None: nothing is told."""
        found = [one for one in await self.store.approvals.questions() if one.name == name]
        if not found:
            return await self.explain_decision(name, message)
        if len(found) != 1 or not self._is_decider(found[0], message):
            return None
        is_over = has_ended(found[0], self.waiting)
        no = outcome(name, found[0].tool, ENDED) if is_over else self.weak_proof_reply(found[0], message)
        if no is not None:
            return no
        try:
            verdict, grant = self.verdict(found[0], said, message)
            now = await self.store.approvals.decide(name, verdict, grant=grant)
        except Unfit as error:
            return str(error)
        if now is None:  # somebody else decided, and the turn ended, since it was looked up
            return await self.explain_decision(name, message)
        counts = (now.verdict or {}).get("verdict")
        _log.info("tool_approval.decided", item=name, tool=now.tool, verdict=counts, granted=bool(grant))
        return outcome(name, now.tool, counts) + (granted_text(grant) if counts == APPROVED else "")

    async def explain_decision(self, name: str, message: InboundMessage) -> str | None:
        """Return the reply about a decided question, or None for outsiders. Raises `StoreUnavailable`."""
        found, decision = await self.store.approvals.find_decision(name), self.access.decide(message)
        if found is None or not decision.allowed:
            return None
        here = place_of(found.session) == place_of(message.session)
        alone = found.verdict not in WAS or message.audience is Audience.DIRECT
        if decision.role is not Role.OWNER and not (here and alone):
            return None
        if was := WAS.get(found.verdict):
            return _("`{name}` was {was} before. This changes nothing.", name=name, was=_(was))
        told = outcome(name, found.tool, found.verdict)
        still = [one for one in await self.calls() if one.session == found.session]
        now = [one.name for one in still if found.verdict == EDITED and self.may_decide(one, message)]
        return told + (_(" The question is `{now}` now.", now=now[-1]) if now else "")

    async def _decide_item(self, name: str, said: Decision, message: InboundMessage) -> CommandReply:
        """Take the owner's decision about a draft or a kept message."""
        if self.access.decide(message).role is not Role.OWNER:
            return CommandReply(_(NOTHING_WAITS, name=name))
        if is_admitted(message):
            return CommandReply(NOT_PROVED)
        item = await self.item(name)
        if item is None:
            return CommandReply(
                _("There is nothing named `{name}`. `!approve` alone lists what waits for you.", name=name)
            )
        if not_yet := await self._not_yet(name, item, yes=said.yes):
            return CommandReply(not_yet)
        with suppress(IllegalMove):  # decided already, or dealt with otherwise: its state says how
            if isinstance(item, OutboxRow):
                for part in await self._parts(item):
                    if said.yes:
                        await self.store.outbox.approve(part)
                    else:
                        await self.store.outbox.reject(part, said.why or "by the owner")
            elif item.state is InboxState.QUARANTINED:
                await (self.store.inbox.admit if said.yes else self.store.inbox.drop)(item.id)
            _log.info("reply_approval.decided", item=name, yes=said.yes)
        now = await self.item(name)
        is_refused = isinstance(now, OutboxRow) and now.state is OutboxState.DEAD and not said.yes
        return CommandReply(item_outcome(name, now), (item.message.session,) if is_refused else ())

    async def _not_yet(self, name: str, item: OutboxRow | InboxRow, *, yes: bool) -> str:
        """Return the reason against letting a message in now, or an empty text; it is an item from now on."""
        kept_back = yes and isinstance(item, InboxRow) and is_undecided(item)
        if item.message.context.invitation:
            told = _(
                "`{name}` is an invitation. `!allow ADDRESS` lets its sender in and accepts it.", name=name
            )
            return told if kept_back else ""
        unseen = kept_back and not await self._was_asked(name, InboxState.SETTLED)
        await self.note_items([name])  # and so it can be told of later, although it does not wait any more
        if not unseen:
            return ""
        return _(
            "You have not seen all of `{name}`. I now show you all of it in a separate message; write "
            "`!approve {name}` again to let it in.",
            name=name,
        )

    async def _parts(self, item: OutboxRow) -> list[int]:
        """Return the ids of an answer's parts that are still held, in order."""
        answered = None if item.inbox_id is None else await self.store.inbox.row(item.inbox_id)
        rows = [] if answered is None else answered[1]
        same = [row.id for row in rows if row.state is OutboxState.HELD and row.inbox_id == item.inbox_id]
        return sorted({*same, item.id} if is_undecided(item) else same)

    # ── signs and replies ──

    async def react(self, message: InboundMessage) -> CommandReply | None:
        """
        Take a reaction to a notice about one item: the owner's, or of somebody whose question waits for a
        tool. Nothing is told of any other; None: it is about no notice. Raises `StoreUnavailable`.
        """
        names, sign = await self._notice(message), sign_of(message.text)
        if not names:
            return None
        if sign is None and await self._waits_for(message, names):
            shown = safe_line(message.text, 20)
            return CommandReply(
                _("{sign} is no yes or no, so it still waits: 👍 is yes, 👎 is no.", sign=shown)
            )
        told = None if sign is None else await self._about_notice(message, names, yes=sign is not Sign.NO)
        return told or CommandReply("")

    async def _waits_for(self, message: InboundMessage, names: Container[str]) -> bool:
        """Return True if something of these names waits for a decision of the sender."""
        owner = self.access.decide(message).role is Role.OWNER
        return any(one.name in names and self.may_decide(one, message) for one in await self.calls()) or (
            owner and any(name in names for name, _item in await self._items())
        )

    async def decide_by_reply(self, message: InboundMessage) -> CommandReply | None:
        """
        Take a reply to the notice: in its first line ``approve`` or ``reject``, with or without the sign of a
        command, and nothing else; or a plain yes or no about a draft or a kept message. None: it is no
        decision, but a message like any other. Raises `StoreUnavailable`.
        """
        if message.kind != "message" or not message.context.outbound:
            return None
        yes = _WRITTEN.get(message.text.lstrip().partition("\n")[0].strip().strip(".!/").lower())
        said = read_answer(message.text) if yes is None else None
        if yes is None and (said is None or said.sign is Sign.UNCLEAR or said.span):
            return None
        names = await self._notice(message)
        if said is not None:
            yes = said.sign is not Sign.NO
            if any(map(is_call, names)):
                return None  # decided when it was accepted, if it is an answer
        return await self._about_notice(message, names, yes=bool(yes))

    async def _about_notice(
        self, message: InboundMessage, names: list[str], *, yes: bool
    ) -> CommandReply | None:
        """A decision in answer to a notice; None if it is not this person's to take, or no notice."""
        if len(names) == 1 and is_call(names[0]):
            told = await self._decide_call(names[0], Decision(yes), message)
            if told is None and message.audience is Audience.DIRECT:
                waits = [one.name for one in await self.store.approvals.questions()]
                told = None if names[0] in waits else _(NOTHING_WAITS, name=names[0])
            return None if told is None else CommandReply(told)
        if not names or self.access.decide(message).role is not Role.OWNER:
            return None
        if len(names) == 1 or is_admitted(message):
            return await self._decide_item(names[0], Decision(yes), message)
        return CommandReply(
            _(
                "That notice is about several items. Write `!approve` or `!reject` with one of these "
                "names: {names}",
                names=", ".join(names),
            )
        )

    async def _notice(self, message: InboundMessage) -> list[str]:
        """The items of the notice that a message answers; a sign counts only in the notice's conversation."""
        if not message.context.outbound:
            return []
        row = await self.store.outbox.find_by_key(message.context.outbound)
        if row is None:
            return []
        if message.kind == "reaction" and place_of(row.message.session) != place_of(message.session):
            _log.warning(
                "reply_approval.decided_elsewhere", channel=message.channel, session=str(message.session)
            )
            return []
        return list(row.message.notes.approves)


def _question(name: str) -> InboundMessage:
    """Our own note that the owner is to be asked about an item."""
    return InboundMessage(
        channel=OWNER_QUESTIONS.channel,
        account=_ACCOUNT,
        native_id=name,
        session=OWNER_QUESTIONS,
        sender=Sender(address=_ACCOUNT),
        text=name,
        received_at=datetime.now(UTC),
        audience=Audience.DIRECT,
    )
