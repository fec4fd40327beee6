"""
Drafts and quarantined messages that wait for the owner's approval. For each item a message of ours, with the
item's name as native id, goes into the inbox in the session `OWNER_QUESTIONS`; its turn commits the notice,
so that the owner is asked exactly once. Items are found by scanning (`ReviewQuestions.run`). ``d12`` is the
draft with outbox id 12, ``m7`` the message with inbox id 7; the owner decides by ``!approve``, ``!reject`` or
a reaction. Replies derive from the item's state, so that repeated decisions read alike.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import anyio
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.language import _
from agent_core.messages import (
    Attachment,
    Audience,
    InboundMessage,
    MessageContext,
    MessageNotes,
    Sender,
    SessionKey,
)
from agent_core.models import Message
from agent_core.text import read_number
from gateway.proactive.owner_alerts import is_for_daily_note
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.routing.access import Access, Role, is_admitted
from gateway.store.states import QUARANTINE_S, IllegalMove, InboxState, OutboxState
from gateway.store.stores import InboxRow, NewOutbound, OutboxRow, Pending, Queue, StoreUnavailable, Turn
from gateway.store.wakeups import Wakeups
from gateway.turns.questions.decisions import NOT_PROVED, NOTHING_WAITS, ToolDecisions, is_call, place_of
from gateway.turns.questions.question_text import (
    extra_fields,
    fenced_arguments,
    is_undecided,
    outcome,
    quote,
    reason_text,
    safe_line,
    visible,
)
from gateway.turns.questions.yes_and_no import Sign, read_answer

Approval = Literal["none", "strangers", "all"]
"""Whose answers the owner sees before they leave: nobody's, those to other people, or all."""

OWNER_QUESTIONS = SessionKey("approvals", "owner")
"""The session of our own questions to the owner; no channel has this name."""
ASK_AGAIN_S = 300.0
"""The time after which a question without a place to ask it in is tried again."""
_ACCOUNT = "gateway"
_TOPIC = "approvals"
_CHECK_EVERY_S = 30.0
_PAGE = 500
_QUOTED_CHARS = 600
_QUOTED_CHARS_OF_MANY = 300
_YES = frozenset("👍✅👌✔☑💯🆗")
_NO = frozenset("👎❌✖🚫⛔")
_WRITTEN = {"approve": True, "approved": True, "reject": False, "rejected": False}
_RETRY = BackoffPolicy(first_s=5.0, cap_s=300.0)
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
class ReviewQuestions:
    """Asks the owner and takes the decisions; ``held`` is the reply approval by channel."""

    store: Queue
    notifier: OwnerNotifier
    access: Access
    wakeups: Wakeups
    calls: ToolDecisions
    held: Mapping[str, Approval]

    def __post_init__(self) -> None:
        self._news = anyio.Event()
        self._drafts_known: set[int] = set()
        self._kept_known: set[int] = set()
        """The ids of the drafts and the quarantined messages that are known to be items."""
        self.wakeups.drafts.connect(lambda _: self._news.set())

    def needs_review(self, turn: Turn) -> bool:
        """Return True if the owner approves the reply to a turn before it is sent."""
        approval = self.held.get(turn.channel, "none")
        if approval == "strangers":
            return any(self.access.decide(row.message).role is not Role.OWNER for row in turn.rows)
        return approval == "all"

    # ── finding ──

    async def run(self) -> None:
        """Look for new items until cancelled. Raises nothing but cancellation."""
        failures = 0
        while True:
            self._news = anyio.Event()
            wait_s = _CHECK_EVERY_S
            try:
                await self._ask_new_items()
                failures = 0
            except StoreUnavailable as error:
                failures += 1
                wait_s = _RETRY.delay(failures, random=random.random())
                _log.warning("reply_approval.blocked", error=str(error), retry_in_s=round(wait_s, 1))
            with anyio.move_on_after(wait_s):
                await self._news.wait()

    async def _ask_new_items(self) -> None:
        """Every item has its question, those that had one already have no second."""
        found = 0
        while True:
            drafts, drafts_known = await self.store.outbox.new_drafts(self._drafts_known, limit=_PAGE)
            kept, kept_known = await self.store.inbox.list_new_quarantine(self._kept_known, limit=_PAGE)
            if (drafts or kept) and (await self.notifier.reach(_TOPIC)).target is None:
                break
            # Of a forged sender the owner hears once a day, not once a mail.
            names = [f"d{row.id}" for row in drafts] + [
                f"m{row.id}" for row in kept if not is_for_daily_note(row)
            ]
            found += await self._know(*sorted(names, key=lambda name: int(name[1:]))) if names else 0
            self._drafts_known, self._kept_known = drafts_known, kept_known
            if not (drafts or kept):
                break
        if found:
            _log.info("reply_approval.drafts_found", items=found)

    async def _know(self, *names: str) -> int:
        """Put down that these are items; how many were not known."""
        batch = [Pending(_question(name)) for name in names]
        return len(await self.store.inbox.accept(OWNER_QUESTIONS.channel, _ACCOUNT, batch, {}))

    async def _items(self) -> list[tuple[str, OutboxRow | InboxRow]]:
        """Return the pending items, newest first. An answer in parts is one item, named after the first."""
        held: dict[int, OutboxRow] = {}
        for row in await self.store.outbox.rows(states=[OutboxState.HELD], limit=_PAGE):
            held[-row.id if row.inbox_id is None else row.inbox_id] = row
        kept = await self.store.inbox.rows(states=[InboxState.QUARANTINED], limit=_PAGE)
        return [(f"d{row.id}", row) for row in held.values()] + [(f"m{row.id}", row) for row in kept]

    # ── asking ──

    async def questions(self, turn: Turn) -> list[NewOutbound] | None:
        """Build notices of undecided items of a turn; None without a place. Raises `StoreUnavailable`."""
        found = [(row.message.text, await self._item(row.message.text)) for row in turn.rows]
        waiting = [(name, item) for name, item in found if item is not None and is_undecided(item)]
        if not waiting:
            return []
        room = _QUOTED_CHARS if len(waiting) == 1 else _QUOTED_CHARS_OF_MANY
        told = [await self._question(name, item, room) for name, item in waiting]
        if len(waiting) == 1:
            ((first, rest),), name = told, waiting[0][0]
            parts = [first, _("Reply `yes` / `no`, or 👍 / 👎"), _waits(waiting[0][1])]
            parts += [_("Also: {commands}", commands=f"`!approve {name}`, `!reject {name}`"), rest]
        else:
            parts = [part for each in told for part in each]
            parts.append(_("Write `!approve NAME` or `!reject NAME` for each."))
        text = "\n\n".join(filter(None, parts))
        notes = MessageNotes(approves=tuple(name for name, __ in waiting))
        return await self.notifier.compose(_TOPIC, text, MessageContext(notes=notes))

    async def _question(self, name: str, item: OutboxRow | InboxRow, room: int) -> tuple[str, str]:
        """Return the owner's question about an item: what it is and why, and what stands below it."""
        text, below = quote(item.message.text, room, hashed=room != _QUOTED_CHARS), list[str]()
        if room == _QUOTED_CHARS and (size := len(visible(item.message.text))) > room:
            below.append(_("All of it:\n\n{text}", text=quote(item.message.text, size)))
        if isinstance(item, InboxRow):
            sender, why = item.message.sender.address, reason_text(item.error)
            whose = (
                _("It is from `{sender}`.", sender=safe_line(sender))
                if item.message.sender.verified
                else _("It claims to be from `{sender}`.", sender=safe_line(sender))
            )
            first = _("**{name}**: may I answer this? {whose}", name=name, whose=whose)
            below.append(_besides(item, sender, room))
            return f"{first}\n\n{text}\n\n{_('Quarantined: {why}.', why=why)}", "\n\n".join(
                filter(None, below)
            )
        asked = await self._asked(item)
        who = _(" to `{person}`", person=safe_line(asked.sender.address)) if asked else ""
        first = _("**{name}**: my answer{to} waits for your approval:", name=name, to=who)
        why = _("You approve what I send by {channel}.", channel=item.message.channel)
        below += [_("It answers:\n\n{text}", text=quote(asked.text, room // 2))] if asked else []
        below.append(_besides(item, asked.sender.address if asked else "", room))
        return f"{first}\n\n{text}\n\n{why}", "\n\n".join(filter(None, below))

    async def _asked(self, item: OutboxRow) -> InboundMessage | None:
        found = None if item.inbox_id is None else await self.store.inbox.row(item.inbox_id)
        return found[0].message if found else None

    async def overview(self, calls: Sequence[str]) -> str:
        """List the pending items, one per line; ``calls`` are the lines about tool calls."""
        items = await self._items()
        if not (items or calls):
            return _("Nothing waits for your decision.")
        lines = []
        for name, item in items[:20]:
            where = item.message.channel
            said = item.message if isinstance(item, InboxRow) else await self._asked(item)
            who, text = _("somebody"), ""
            if said is not None:
                sender = said.sender
                who = f"`{safe_line(sender.address)}`"
                if self.access.may_show(said.session, sender.address, verified=sender.verified):
                    text = f": {safe_line(item.message.text)}"
            told = {"person": who, "channel": where, "text": text}
            lines.append(
                f"- `{name}`: "
                + (
                    _("a quarantined message from {person} by {channel}{text}", **told)
                    if isinstance(item, InboxRow)
                    else _("an answer to {person} by {channel}{text}", **told)
                )
            )
        more = [_("- and {n} more", n=len(items) - 20)] if len(items) > 20 else []
        return "\n".join([_("These wait for your decision:"), "", *lines, *more, *calls])

    # ── deciding ──

    async def decide(self, name: str, *, yes: bool, why: str = "") -> CommandReply:
        """Take the owner's decision about an item. It may be repeated. Raises `StoreUnavailable`."""
        name = name.strip().strip("`*:").lower()
        item = await self._item(name)
        if item is None:
            return CommandReply(
                _("There is nothing named `{name}`. `!approve` alone lists what waits for you.", name=name)
            )
        if not_yet := await self._not_yet(name, item, yes=yes):
            return CommandReply(not_yet)
        try:
            if isinstance(item, OutboxRow):
                for part in await self._parts(item):
                    await (
                        self.store.outbox.approve(part)
                        if yes
                        else self.store.outbox.reject(part, why or "by the owner")
                    )
            elif item.state is InboxState.QUARANTINED:
                if yes:
                    await self.store.inbox.admit(item.id)
                else:
                    await self.store.inbox.drop(item.id)
        except IllegalMove:
            pass  # decided already, or dealt with otherwise: its state says how
        else:
            _log.info("reply_approval.decided", item=name, yes=yes)
        now = await self._item(name)
        is_refused = isinstance(now, OutboxRow) and now.state is OutboxState.DEAD and not yes
        return CommandReply(outcome(name, now), (item.message.session,) if is_refused else ())

    async def _not_yet(self, name: str, item: OutboxRow | InboxRow, *, yes: bool) -> str:
        """Return the reason against letting a message in now, or an empty text; it is an item from now on."""
        kept_back = yes and isinstance(item, InboxRow) and is_undecided(item)
        if item.message.context.invitation:
            told = _(
                "`{name}` is an invitation. `!allow ADDRESS` lets its sender in and accepts it.", name=name
            )
            return told if kept_back else ""
        unseen = kept_back and not await self._was_asked(name, InboxState.SETTLED)
        await self._know(name)  # and so it can be told of later, although it does not wait any more
        return (
            _(
                "You have not seen all of `{name}`. I now show you all of it in a separate message; write "
                "`!approve {name}` again to let it in.",
                name=name,
            )
            if unseen
            else ""
        )

    async def _parts(self, item: OutboxRow) -> list[int]:
        """Return the ids of an answer's parts that are still held, in order."""
        answered = None if item.inbox_id is None else await self.store.inbox.row(item.inbox_id)
        rows = [] if answered is None else answered[1]
        same = [row.id for row in rows if row.state is OutboxState.HELD and row.inbox_id == item.inbox_id]
        return sorted({*same, item.id} if is_undecided(item) else same)

    async def react(self, message: InboundMessage) -> CommandReply | None:
        """
        Take a reaction to a notice about one item: the owner's, or of somebody whose question waits for a
        tool. Nothing is told of any other; None: it is about no notice. Raises `StoreUnavailable`.
        """
        if not await self._notice(message):
            return None
        yes = message.text[:1] in _YES
        if not (yes or message.text[:1] in _NO):
            return CommandReply("")
        return await self._about_notice(message, yes=yes) or CommandReply("")

    async def decide_by_reply(self, message: InboundMessage) -> CommandReply | None:
        """
        Take a reply to the notice: in its first line ``approve`` or ``reject``, with or without the sign of a
        command, and nothing else; or a plain yes or no about a draft or a kept message. None: it is no
        decision, but a message like any other. Raises `StoreUnavailable`.
        """
        if message.kind != "message" or not message.context.outbound:
            return None
        word = message.text.lstrip().partition("\n")[0].strip().strip(".!/").lower()
        if word in _WRITTEN:
            return await self._about_notice(message, yes=_WRITTEN[word])
        said = read_answer(message.text)
        if (
            said is None
            or said.sign is Sign.UNCLEAR
            or said.span
            or any(map(is_call, await self._notice(message)))
        ):
            return None
        return await self._about_notice(message, yes=said.sign is not Sign.NO)

    async def _about_notice(self, message: InboundMessage, *, yes: bool) -> CommandReply | None:
        """A decision in answer to a notice; None if it is not this person's to take, or no notice."""
        names = await self._notice(message)
        if len(names) == 1 and is_call(names[0]):
            told = await self.calls.decide(names[0], message, yes=yes)
            if told is None and message.audience is Audience.DIRECT and await self.calls.is_gone(names[0]):
                told = _(NOTHING_WAITS, name=names[0])
            return None if told is None else CommandReply(told)
        if not names or self.access.decide(message).role is not Role.OWNER:
            return None
        if is_admitted(message):
            return CommandReply(NOT_PROVED)
        if len(names) > 1:
            told = ", ".join(names)
            return CommandReply(
                _(
                    "That notice is about several items. Write `!approve` or `!reject` with one of these "
                    "names: {names}",
                    names=told,
                )
            )
        return await self.decide(names[0], yes=yes)

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

    async def _item(self, name: str) -> OutboxRow | InboxRow | None:
        number = read_number(name[1:])
        if number is None or not is_review_name(name):
            return None
        if name[0] == "d":
            item: OutboxRow | InboxRow | None = await self.store.outbox.row(number)
        else:
            found = await self.store.inbox.row(number)
            item = found[0] if found else None
        return item if item is not None and (is_undecided(item) or await self._was_asked(name)) else None

    async def _was_asked(self, name: str, *states: InboxState) -> bool:
        """Return True if the owner was asked about this message and it is in one of the states, if any."""
        row = await self.store.inbox.find_by_key(OWNER_QUESTIONS.channel, _ACCOUNT, name)
        return row is not None and (row.state in states if states else row.state is not InboxState.IGNORED)


def is_review_name(name: str) -> bool:
    """Return True if a text can be the name of a draft or a quarantined message."""
    return name[:1] in ("d", "m") and read_number(name[1:]) is not None


def _besides(item: OutboxRow | InboxRow, sender: str, room: int) -> str:
    """Return what else goes with the item, verbatim; empty for nothing."""
    told = extra_fields(item.message, sender=sender)
    return _("With it:\n\n{text}", text=fenced_arguments(told, room)) if told else ""


def _waits(item: OutboxRow | InboxRow) -> str:
    days = round(QUARANTINE_S / 86_400)
    kept = isinstance(item, InboxRow)
    return _("It is kept for {n} days.", n=days) if kept else _("It waits until you decide.")


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
