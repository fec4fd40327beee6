"""
From the outbox to a server: one `Delivery` per channel, in order per destination, in parallel across them.
The row's state decides what may be repeated. A row is marked ``sending`` before anything is sent to the
server and ``uncertain`` just before the point of no return. Everything before that may be repeated. An
uncertain row follows the channel's rule: the same key again, a probe, or a person.
"""

from __future__ import annotations

import random
from dataclasses import KW_ONLY, dataclass

import anyio
import structlog
from anyio.abc import TaskGroup

from agent_core.backoff import BackoffPolicy
from agent_core.language import _, speaking
from agent_core.messages import OutboundKind, SessionKey
from agent_core.ports import Clock
from channels.base import (
    Channel,
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    DeliveryFailed,
    DeliveryUncertain,
    NoRecipient,
    Receipt,
    Redelivery,
)
from channels.status import ChannelStatus
from gateway.errors import describe
from gateway.observability import metrics
from gateway.observability.redaction import outgoing_texts, quiet
from gateway.observability.traces import note_outcome, trace_delivery
from gateway.routing.conversations import Conversations
from gateway.routing.crash_isolation import ALONE_AFTER, CRASH_APOLOGY, CrashIsolation, fatal
from gateway.store.states import IllegalMove, link_wait
from gateway.store.stores import OutboxRow, Queue, StoreUnavailable, Suspect
from gateway.store.wakeups import Wakeups

_AT_ONCE = 8
_LIMIT_S = 120.0
_IDLE_CHECK_S = 30.0
_STORE_RETRY = BackoffPolicy(first_s=1.0, cap_s=10.0)
_SEND_RETRY = BackoffPolicy(first_s=1.0, cap_s=300.0)
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Delivery:
    """
    Sends the outbox of one channel.

    Args:
        give_up_after_s: The time of retries; older messages still get a few attempts, as after a downtime.
        suspects: Knows what the process may have died of.
        wakeups: Report messages to send.
        conversations: Find the history of remembered messages.
    """

    channel: Channel
    store: Queue
    clock: Clock
    _: KW_ONLY
    give_up_after_s: float = 48 * 3600.0
    suspects: CrashIsolation | None = None
    wakeups: Wakeups | None = None
    conversations: Conversations | None = None

    def __post_init__(self) -> None:
        self._suspects = self.suspects or CrashIsolation(self.store.maintenance)
        self._busy: set[SessionKey] = set()
        self._absent: set[SessionKey] = set()
        self._changed = anyio.Event()
        self._link_up = anyio.Event()
        self._draining = False
        self._closed_link = False
        if self.wakeups is not None:
            self.wakeups.outbox.connect(self._posted)
            self.wakeups.attached.connect(self._attached)
            self.wakeups.channel.connect(self._channel_changed)

    def wake(self) -> None:
        """Wake up: there may be something to send."""
        self._changed.set()

    def _posted(self, channel: str) -> None:
        if channel == self.channel.name:
            self.wake()

    def _channel_changed(self, status: ChannelStatus) -> None:
        if status.name == self.channel.name:
            self.link(up=status.can_send)

    def _attached(self, session: SessionKey) -> None:
        if session.channel == self.channel.name:
            self.present(session)

    def present(self, session: SessionKey) -> None:
        """Somebody is there to take what was kept while nobody was."""
        self._absent.discard(session)
        self._changed.set()

    def link(self, *, up: bool) -> None:
        """Report that the channel's link went up or down; nothing is sent while it is down."""
        if up:
            self._link_up.set()
        elif self._link_up.is_set():
            self._link_up = anyio.Event()
        self._changed.set()

    def drain(self) -> None:
        """Make `run` return as soon as nothing is due; at once if the link is down."""
        self._draining = True
        self._changed.set()
        if not self._link_up.is_set():
            self._closed_link = True
            self._link_up.set()

    async def run(self) -> None:
        """Send until `drain`."""
        async with anyio.create_task_group() as senders:
            while not self._closed_link:
                await self._link_up.wait()
                self._changed = anyio.Event()
                try:
                    wait_s = await self._start_due(senders)
                except StoreUnavailable as error:
                    _log.warning("outbox.unreadable", channel=self.channel.name, error=str(error))
                    wait_s = 2.0
                if self._draining and not self._busy:
                    return
                with anyio.move_on_after(wait_s):
                    await self._changed.wait()

    async def _start_due(self, senders: TaskGroup) -> float:
        name, account = self.channel.name, self.channel.account
        room = _AT_ONCE - len(self._busy)
        if room <= 0 or self._closed_link:
            return _IDLE_CHECK_S
        passed_over = tuple(self._busy | self._absent)
        rows = await self.store.outbox.next_sends(name, account, busy=passed_over, limit=room)
        for row in rows:
            if row.message.session not in self._busy | self._absent:
                self._busy.add(row.message.session)
                senders.start_soon(self._send_guarded, row)
        if rows:
            return _IDLE_CHECK_S
        due_s = await self.store.outbox.next_send_in(name, account, busy=tuple(self._busy | self._absent))
        return _IDLE_CHECK_S if due_s is None else min(max(due_s, 0.05), _IDLE_CHECK_S)

    async def _send_guarded(self, row: OutboxRow) -> None:
        try:
            with (
                speaking(row.message.notes.language),
                quiet(outgoing_texts(row.message)),
                trace_delivery(row, self.channel.name),
                structlog.contextvars.bound_contextvars(session=str(row.message.session)),
            ):
                suspect = self._suspects.suspect_send(row.id)
                async with self._suspects.count_in_flight(
                    alone=suspect is not None and suspect.record.deaths >= ALONE_AFTER
                ):
                    await self._send(row, suspect)
        except IllegalMove as error:
            _log.info("outbox.changed_meanwhile", channel=self.channel.name, outbox=row.id, error=str(error))
        except StoreUnavailable as error:
            # The row keeps its last durable state. Looking again too soon would only repeat the failure.
            _log.error("outbox.blocked", channel=self.channel.name, outbox=row.id, error=str(error))
            await anyio.sleep(_STORE_RETRY.delay(row.attempts + 1, random=random.random()))
        finally:
            self._busy.discard(row.message.session)
            self._changed.set()

    async def _send(self, row: OutboxRow, suspect: Suspect | None) -> None:
        if (why := fatal(suspect)) is not None:
            await self._give_up_killer(row, why)
            return
        if row.uncertain_since is not None and not await self._may_repeat(row):
            return
        await self.store.outbox.sending(row)
        reached = _Reached(self.store, row)
        # What becomes of this try says nothing about an earlier one that nobody has asked for.
        probed = self.channel.capabilities.redelivery is not Redelivery.SAME_KEY
        open_before = row.uncertain_since is not None and not probed
        try:
            with anyio.fail_after(_LIMIT_S):
                message = row.message.model_copy(update={"maybe_sent": open_before})
                receipt = await self.channel.deliver(message, uncertain=reached.note_uncertain)
        except (ChannelError, TimeoutError) as error:
            certain = not reached.uncertain or _is_certain(error)
            await self._failed(row, error, certain=certain and not open_before)
        except (StoreUnavailable, IllegalMove):
            raise
        except Exception as error:  # noqa: BLE001 - a defect of a channel costs a retry, not the loop
            _log.exception("outbox.defect", channel=self.channel.name, outbox=row.id)
            await self._failed(row, error, certain=not reached.uncertain and not open_before)
        else:
            await self._record_sent(row, receipt)
            _count(self.channel.name, "sent")
            _log.info("message.sent", channel=self.channel.name, inbox=row.inbox_id, outbox=row.id)

    async def _record_sent(self, row: OutboxRow, receipt: Receipt) -> None:
        """Note that the server has it. A stop does not keep this from the store, as long as that takes it."""
        with anyio.move_on_after(5.0, shield=True) as limit:
            await self._record_until_stored(row, receipt)
        if limit.cancelled_caught:
            await self._record_until_stored(row, receipt)

    async def _record_until_stored(self, row: OutboxRow, receipt: Receipt) -> None:
        """Until the store knows that the server has it, nothing else may happen to this row."""
        into = receipt.session or row.message.session
        if self.conversations is not None:
            into = self.conversations.reading_scope(into, row.message.notes.scope)
        attempt = 0
        while True:
            try:
                await self.store.outbox.record_send(row, receipt.provider_id, into=into)
                return
            except StoreUnavailable as error:
                attempt += 1
                _log.error("outbox.blocked", channel=self.channel.name, outbox=row.id, error=str(error))
                await anyio.sleep(_STORE_RETRY.delay(attempt, random=random.random()))

    async def _give_up_killer(self, row: OutboxRow, why: str) -> None:
        """Dead-letter a message that the process dies of; what may have arrived needs review."""
        if row.uncertain_since is not None:
            await self._needs_review(row, f"{why}, and the server may have it")
        else:
            _count(self.channel.name, "dead")
            _log.error(
                "message.dead_lettered", channel=self.channel.name, outbox=row.id, why="kills", error=why
            )
            await self.store.outbox.record_failure(
                row, why, delay_s=None, apology=_apology(row, CRASH_APOLOGY)
            )
        await self._suspects.load_suspects()

    async def _may_repeat(self, row: OutboxRow) -> bool:
        match self.channel.capabilities.redelivery:
            case Redelivery.SAME_KEY:
                return True
            case Redelivery.PROBE:
                return await self._probe(row)
            case Redelivery.REVIEW:
                await self._needs_review(row, "the server may have it, and nobody can find out")
                return False

    async def _needs_review(self, row: OutboxRow, why: str) -> None:
        await self.store.outbox.uncertain(row)  # it may be `sending`, because the server was asked
        await self.store.outbox.needs_review(row, why)
        _count(self.channel.name, "unknown")
        _log.error("message.needs_review", channel=self.channel.name, outbox=row.id, why=why)

    async def _probe(self, row: OutboxRow) -> bool:
        await self.store.outbox.probing(row)
        try:
            with anyio.fail_after(_LIMIT_S):
                receipt = await self.channel.probe(row.message)
        except (StoreUnavailable, IllegalMove):
            raise
        except Exception as error:  # noqa: BLE001 - of one message, and one channel's trouble is not the others'
            if not isinstance(error, (ChannelError, TimeoutError)):
                _log.exception("outbox.defect", channel=self.channel.name, outbox=row.id)
            await self._probe_failed(row, error)
            return False
        if receipt is None:
            return True
        _log.info("outbox.sent_copy_found", channel=self.channel.name, outbox=row.id)
        await self._record_sent(row, receipt)
        _count(self.channel.name, "sent")
        return False

    async def _probe_failed(self, row: OutboxRow, error: Exception) -> None:
        text = str(error) or type(error).__name__
        since = row.uncertain_since or row.message.created_at
        age_s = (self.clock.now() - since).total_seconds()
        if age_s > self.give_up_after_s:
            await self._needs_review(row, f"the server may have it, and it cannot be asked: {text}")
            return
        # Probing is not counted in attempts, so the age has to make the tries rarer.
        delay_s = max(self._delay(row, error), min(age_s / 8, 60.0))
        _log.info("outbox.sent_check_deferred", channel=self.channel.name, outbox=row.id, error=text)
        await self.store.outbox.record_failure(
            row, text, delay_s=delay_s, certain=False, waits_for=self._waits_for(error)
        )

    async def _failed(self, row: OutboxRow, error: Exception, *, certain: bool) -> None:
        if isinstance(error, NoRecipient):
            self._absent.add(row.message.session)  # before anything is awaited: somebody may come meanwhile
            _log.info("message.kept", channel=self.channel.name, outbox=row.id, error=str(error))
            await self.store.outbox.record_failure(row, str(error), delay_s=0.1, certain=certain)
            return
        age_s = (self.clock.now() - row.message.created_at).total_seconds()
        if isinstance(error, DeliveryFailed):
            give_up = "refused"
        elif age_s > self.give_up_after_s and row.attempts + 1 >= 5:
            give_up = "too_old"
        elif not isinstance(error, (ChannelError, TimeoutError)) and row.attempts >= 8:
            give_up = "defect"
        else:
            give_up = ""
        delay_s = None if give_up else self._delay(row, error)
        text = str(error) or type(error).__name__
        if give_up:
            _count(self.channel.name, "dead")
            _log.error(
                "message.dead_lettered", channel=self.channel.name, outbox=row.id, why=give_up, error=text
            )
        else:
            _count(self.channel.name, "retried")
            _log.warning(
                "message.retried",
                channel=self.channel.name,
                outbox=row.id,
                error=text,
                retry_in_s=None if delay_s is None else round(delay_s, 1),
                certain=certain,
            )
        apology = _apology(row, describe(error).public) if give_up in ("refused", "defect") else None
        await self.store.outbox.record_failure(
            row,
            text,
            delay_s=delay_s,
            certain=certain,
            apology=apology,
            waits_for=None if give_up else self._waits_for(error),
        )

    def _waits_for(self, error: Exception) -> str | None:
        """The link, unless the server has said itself how long to wait, or the defect is ours."""
        if isinstance(error, (ChannelAuthFailed, ChannelMisconfigured)):
            return link_wait(self.channel.name)  # a link that comes up has perhaps got other settings
        if not isinstance(error, (ChannelError, TimeoutError)) or getattr(error, "retry_after_s", None):
            return None
        return link_wait(self.channel.name)

    def _delay(self, row: OutboxRow, error: Exception) -> float:
        asked_s = getattr(error, "retry_after_s", None)
        if asked_s is not None:
            return float(min(max(asked_s, 0.1), 3600.0))
        if isinstance(error, (ChannelAuthFailed, ChannelMisconfigured)):
            return 60.0
        if isinstance(error, (ChannelError, TimeoutError)) and not self._link_up.is_set():
            return 1.0  # nothing is tried before the link is up again, so there is nobody to spare
        return _SEND_RETRY.delay(row.attempts + 1, random=random.random())


def _count(channel: str, outcome: str) -> None:
    metrics.OUTBOUND.labels(channel, outcome).inc()
    note_outcome(outcome)


def _apology(row: OutboxRow, why: str) -> str | None:
    """Return the text to send instead of a refused answer; None if the answer may have arrived."""
    answers = row.message.kind is OutboundKind.REPLY and row.inbox_id is not None
    answers = answers and row.message.context.speech is None  # the text of it has arrived
    if not answers or row.uncertain_since is not None:
        return None
    return _("Sorry, I have an answer for you and could not send it. {why}", why=_(why))


def _is_certain(error: Exception) -> bool:
    """Return True if an error after the point of no return proves that the server lacks the message."""
    return not isinstance(error, (DeliveryUncertain, TimeoutError))


class _Reached:
    """Marks the point of no return of one try."""

    def __init__(self, store: Queue, row: OutboxRow) -> None:
        self._store = store
        self._row = row
        self.uncertain = False

    async def note_uncertain(self) -> None:
        """Make durable that the server may have the message from now on."""
        self.uncertain = True
        await self._store.outbox.uncertain(self._row)
