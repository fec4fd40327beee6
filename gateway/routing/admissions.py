"""
People whom the owner lets in beside the settings, and the messages that were kept until then. A proven sender
who is in no ``allow_from`` is not answered: a few messages of each are kept in the quarantine under
`UNINVITED`, without files, and the owner hears of them once a day. Letting the person in is stored first and
acts on the messages then, so it can be repeated after a crash.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from agent_core.language import _, gettext_noop
from agent_core.messages import InboundMessage
from gateway.routing.access import Access, Role, kinds_of, normalise
from gateway.store.states import UNINVITED, IllegalMove, InboxState
from gateway.store.stores import InboxRow, Pending, Queue

MAX_KEPT = 100
MAX_OF_ONE = 5
"""The most waiting messages of uninvited people, in all and of one of them; others are only listed."""
MAX_KEPT_CHARS = 20_000
_TOPIC = "let-in:"
_REFUSED = frozenset(
    {
        *("no_single_sender", "from_own_address", "not_addressed_to_us", "over_limit"),
        *("name_too_long", "quarantine_expired", "invitation_not_allowed"),
    }
)
"""Reasons for which a message is ignored that somebody may have written for an answer."""
_PATTERNS = (*sorted(_REFUSED), UNINVITED, "sender_not_verified", "unreadable_%")
"""The same, and others that `was_refused` looks at, for the database."""
_LOOKED_AT = 5_000
_MAY_ALREADY = gettext_noop(
    "may write to me already; what does not prove to be theirs waits for your decision under its name, as m7"
)
_CUT = "\n\n[The rest was not kept, because its sender may not write to me.]"


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """
    The channels where somebody may write now, and the numbers of messages answered and invitations accepted;
    ``problem`` if nowhere.
    """

    address: str
    channels: Sequence[str] = ()
    messages: int = 0
    invitations: int = 0
    problem: str = ""


def cut_message(message: InboundMessage) -> InboundMessage:
    """Return an uninvited person's message, cut to what is kept."""
    text = message.text
    if len(text) > MAX_KEPT_CHARS:
        text = text[:MAX_KEPT_CHARS] + _CUT
    message = message.model_copy(update={"text": text, "attachments": (), "background": ()})
    return message.with_context(replace(message.context, quoted=None))


def was_refused(row: InboxRow, access: Access) -> bool:
    """
    Return True if a person may have wanted an answer and got none. Robots are only counted, and what others
    say to each other in a room is nothing that was refused; what names the bot there is only listed.
    """
    if row.state is InboxState.QUARANTINED:
        return True
    reason, message = row.error or "", row.message
    if reason in (UNINVITED, "invitation_not_allowed") and access.decide(message).role is not Role.STRANGER:
        return False  # they have been let in since
    is_for_us = message.addressed or not access.has_rooms(message.channel)
    return row.state is InboxState.IGNORED and (
        reason.startswith("unreadable_")
        or reason in _REFUSED
        or (is_for_us and reason in (UNINVITED, "sender_not_verified"))
    )


async def refused_rows(store: Queue, access: Access, *, limit: int) -> list[InboxRow]:
    """Return the newest ``limit`` rows that `was_refused`. Raises `StoreUnavailable`."""
    found: list[InboxRow] = []
    for most in (2 * limit, _LOOKED_AT):
        rows = await store.inbox.rows(states=[InboxState.QUARANTINED], limit=most)
        rows += await store.inbox.rows(states=[InboxState.IGNORED], errors=_PATTERNS, limit=most)
        found = sorted((row for row in rows if was_refused(row, access)), key=lambda row: -row.id)[:limit]
        if len(found) == limit or len(rows) < most:
            break
    return found


async def bound_batch(batch: Sequence[Pending], store: Queue) -> list[Pending]:
    """The batch, in which what exceeds a bound is only remembered as seen. Raises `StoreUnavailable`."""
    if not any(entry.quarantine == UNINVITED for entry in batch):
        return list(batch)
    kept = [row.message.sender.address for row in await store.inbox.quarantined_as(UNINVITED)]
    each, entries = Counter(map(normalise, kept)), list[Pending]()
    for entry in batch:
        who = normalise(entry.message.sender.address)
        if entry.quarantine != UNINVITED:
            entries.append(entry)
        elif each[who] >= MAX_OF_ONE or each.total() >= MAX_KEPT:
            entries.append(replace(entry, ignore=UNINVITED, quarantine=None))
        else:
            each[who] += 1
            entries.append(entry)
    return entries


async def load(store: Queue, access: Access) -> None:
    """Let in who was let in before. Raises `StoreUnavailable`."""
    for name in access.channels():
        access.admit(name, _read(await store.state.read(f"{_TOPIC}{name}")))


async def admit_person(store: Queue, access: Access, address: str) -> AdmissionResult:
    """Admit somebody on all channels of the kind and answer kept messages. Raises `StoreUnavailable`."""
    who = normalise(address)
    channels = [name for name in access.channels() if access.kind(name) in kinds_of(who)]
    if "*" in who:
        return AdmissionResult(
            who, problem=_("is not one address: name a whole server in allow_from of the settings")
        )
    if not channels:
        return AdmissionResult(who, problem=_("is no address of a channel that is switched on"))
    if access.is_own(who):
        return AdmissionResult(who, problem=_("is my own address"))
    is_known = all(access.role(name, who, verified=True) is not Role.STRANGER for name in channels)
    for name in () if is_known else channels:
        known = _read(await store.state.read(f"{_TOPIC}{name}"))
        if len(known) >= 500:
            return AdmissionResult(
                who, problem=_("is one too many: name people in allow_from of the settings")
            )
        await _write(store, access, name, [*known, who])
    messages = invitations = 0
    for row in await _kept_of(store, who):
        if row.message.context.invitation:  # its channel accepts it now
            invitations += await store.inbox.drop(row.id)
            continue
        with suppress(IllegalMove):  # somebody was quicker
            await store.inbox.admit(row.id, welcome=True)
            messages += 1
    if is_known and not messages + invitations:
        return AdmissionResult(who, problem=_(_MAY_ALREADY))
    return AdmissionResult(who, channels, messages, invitations)


async def revoke_admission(store: Queue, access: Access, address: str) -> AdmissionResult:
    """Take back `admit_person`; who stands in the settings stays in. Raises `StoreUnavailable`."""
    who, found = normalise(address), list[str]()
    for name in access.channels():
        known = _read(await store.state.read(f"{_TOPIC}{name}"))
        if who in known:
            await _write(store, access, name, [each for each in known if each != who])
            found.append(name)
    return AdmissionResult(
        who, found, problem="" if found else _("was not let in here; see allow_from of the settings")
    )


async def _write(store: Queue, access: Access, channel: str, people: Sequence[str]) -> None:
    await store.state.write(f"{_TOPIC}{channel}", json.dumps(dict.fromkeys(people, True)))
    access.admit(channel, people)


async def _kept_of(store: Queue, who: str) -> list[InboxRow]:
    rows = await store.inbox.quarantined_as(UNINVITED)
    return [row for row in rows if normalise(row.message.sender.address) == who]


def _read(text: str | None) -> list[str]:
    try:
        return [str(address) for address in json.loads(text or "{}")]
    except (ValueError, TypeError):
        return []
