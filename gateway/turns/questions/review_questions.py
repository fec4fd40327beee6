"""
Asks the owner about drafts and quarantined messages. For each item a message of ours, with the item's name as
native id, goes into the inbox in the session `OWNER_QUESTIONS`; its turn commits the notice, so the owner is
asked exactly once. Items are found by scanning (`ReviewQuestions.run`); `Questions` takes the decisions.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import anyio
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.language import _
from agent_core.messages import MessageContext, MessageNotes
from gateway.proactive.owner_alerts import is_for_daily_note
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.routing.access import Role
from gateway.store.states import QUARANTINE_S
from gateway.store.stores import InboxRow, NewOutbound, OutboxRow, StoreUnavailable, Turn
from gateway.store.wakeups import Wakeups
from gateway.turns.questions.question_text import (
    extra_fields,
    fenced_arguments,
    is_undecided,
    quote,
    reason_text,
    safe_line,
    visible,
)
from gateway.turns.questions.questions import Questions

Approval = Literal["none", "strangers", "all"]
"""Whose answers the owner sees before they leave: nobody's, those to other people, or all."""

ASK_AGAIN_S = 300.0
"""The time after which a question without a place to ask it in is tried again."""
_TOPIC = "approvals"
_CHECK_EVERY_S = 30.0
_PAGE = 500
_QUOTED_CHARS = 600
_QUOTED_CHARS_OF_MANY = 300
_RETRY = BackoffPolicy(first_s=5.0, cap_s=300.0)
_log = structlog.get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class ReviewQuestions:
    """Asks the owner about drafts and kept messages; ``held`` is the reply approval by channel."""

    questions: Questions
    notifier: OwnerNotifier
    wakeups: Wakeups
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
            return any(self.questions.access.decide(row.message).role is not Role.OWNER for row in turn.rows)
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
        store, found = self.questions.store, 0
        while True:
            drafts, drafts_known = await store.outbox.new_drafts(self._drafts_known, limit=_PAGE)
            kept, kept_known = await store.inbox.list_new_quarantine(self._kept_known, limit=_PAGE)
            if (drafts or kept) and (await self.notifier.reach(_TOPIC)).target is None:
                break
            # Of a forged sender the owner hears once a day, not once a mail.
            names = [f"d{row.id}" for row in drafts] + [
                f"m{row.id}" for row in kept if not is_for_daily_note(row)
            ]
            found += await self.questions.note_items(sorted(names, key=lambda name: int(name[1:])))
            self._drafts_known, self._kept_known = drafts_known, kept_known
            if not (drafts or kept):
                break
        if found:
            _log.info("reply_approval.drafts_found", items=found)

    # ── asking ──

    async def notices(self, turn: Turn) -> list[NewOutbound] | None:
        """Build notices of undecided items of a turn; None without a place. Raises `StoreUnavailable`."""
        found = [(row.message.text, await self.questions.item(row.message.text)) for row in turn.rows]
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
        asked = await self.questions.answered_message(item)
        who = _(" to `{person}`", person=safe_line(asked.sender.address)) if asked else ""
        first = _("**{name}**: my answer{to} waits for your approval:", name=name, to=who)
        why = _("You approve what I send by {channel}.", channel=item.message.channel)
        below += [_("It answers:\n\n{text}", text=quote(asked.text, room // 2))] if asked else []
        below.append(_besides(item, asked.sender.address if asked else "", room))
        return f"{first}\n\n{text}\n\n{why}", "\n\n".join(filter(None, below))


def _besides(item: OutboxRow | InboxRow, sender: str, room: int) -> str:
    """Return what else goes with the item, verbatim; empty for nothing."""
    told = extra_fields(item.message, sender=sender)
    return _("With it:\n\n{text}", text=fenced_arguments(told, room)) if told else ""


def _waits(item: OutboxRow | InboxRow) -> str:
    days = round(QUARANTINE_S / 86_400)
    kept = isinstance(item, InboxRow)
    return _("It is kept for {n} days.", n=days) if kept else _("It waits until you decide.")
