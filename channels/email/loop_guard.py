"""
Keeps the channel from doing harm, around everything it sends: the circuit breaker, the patience after a
refused login, and the file that lets limits outlive a restart. `LoopGuard` holds the pure parts
(``reply_limits``) to the clock, and tells the operator when one of them acts.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from agent_core.backoff import Backoff, BackoffPolicy
from agent_core.language import ENGLISH, _, for_owner, speaking
from agent_core.messages import OutboundKind, OutboundMessage
from agent_core.state_folder import StateFolder, StateUnreachable, state_in
from channels.base import ChannelAuthFailed, ChannelClock, ChannelUnavailable
from channels.email.config import EmailConfig
from channels.email.parse.mail_addresses import AddressInvalid, normalise
from channels.email.parse.mail_threads import recipient_of
from channels.email.reply_limits import HOUR_S, AnswerLimiter, BreakerOpen, CircuitBreaker
from channels.email.trust.bounces import SentMails

Alert = Callable[..., None]
"""
Tells the operator, by another way than mail if there is one: what it is about, and a sentence. ``once`` is a
key under which it is told once.
"""
_RETRY = BackoffPolicy(first_s=300.0, cap_s=7200.0, jitter=0)
RECHECK_S = 30.0
"""While the circuit breaker is open: somebody may reset it."""
SAVE_EVERY_S = 5.0
MAX_REPORTED = 3
_LIMITS = "answer-limits.json"
_BREAKER = "answer-brake.json"
_log = structlog.get_logger(__name__)


class LoginBackoff:
    """
    After a refused login nothing is tried for minutes, and for longer each time: servers lock accounts after
    too many attempts. For logins that have no other pacing.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._backoff = Backoff(_RETRY)
        self._not_before = 0.0
        self._why = ""

    def check(self) -> None:
        """Call this before a login. Raises `ChannelAuthFailed`: it is too early."""
        left_s = self._not_before - self._monotonic()
        if left_s > 0:
            raise ChannelAuthFailed(
                f"not tried, because a login was refused: {self._why}", retry_after_s=left_s
            )

    def count_refusal(self, error: ChannelAuthFailed) -> bool:
        """Count a refusal; returns whether it is the first since a login was accepted."""
        error.retry_after_s = self._backoff.note_failure(random=1.0)
        self._not_before = self._monotonic() + error.retry_after_s
        self._why = str(error)
        return self._backoff.failures == 1

    def note_success(self) -> None:
        """Note that a login was accepted."""
        self._backoff.reset()
        self._not_before = 0.0


class LoopGuard:
    """The circuit breaker, the login pause and their stored state; see the module."""

    def __init__(
        self,
        name: str,
        config: EmailConfig,
        limiter: AnswerLimiter,
        folder: Path | StateFolder,
        *,
        clock: ChannelClock,
        alert: Alert = lambda _about, _text: None,
        is_owner: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._name = name
        self.mails = SentMails(name, config.address)
        self._is_owner = is_owner
        self._limiter = limiter
        self._state = state_in(folder)
        self._clock = clock
        self._alert = alert
        self._breaker = CircuitBreaker(config.circuit_breaker)
        self._breaker_saved_at = clock.monotonic()
        self._breaker_urgent = False
        self._loaded = False
        self._loading = anyio.Lock()
        self._saving = anyio.Lock()
        self.patience = LoginBackoff(clock.monotonic)

    def before_sending(self, message: OutboundMessage) -> None:
        """Call this before sending. Raises ChannelUnavailable (breaker open) or ChannelAuthFailed (login)."""
        self.patience.check()
        if not _is_answer(message):
            return
        now = self._clock.monotonic()
        owner = self._is_owner(_recipient(message))
        tripped = self._breaker.may_send(str(message.session), now, owner=owner)
        if tripped is None:
            return
        self._note_tripped(tripped, _recipient(message), now)
        wait_s = min(tripped.until - now, RECHECK_S)
        raise ChannelUnavailable(f"the circuit breaker is open: {_english(tripped)}", retry_after_s=wait_s)

    @for_owner
    def note_login_refusal(self, error: ChannelAuthFailed) -> None:
        """Note that a mail did not go out; the link may be up: the mailbox has a login of its own."""
        if self.patience.count_refusal(error):
            self._alert(
                f"submission {self._name}",
                _("No mail goes out on {name}: {error}", name=self._name, error=error)
                + _(
                    "\n\nI try again in {n} minutes; restart me to try at once.",
                    n=round((error.retry_after_s or 0) / 60),
                ),
            )

    def count_sent_mail(self, message: OutboundMessage, message_id: str) -> None:
        """Count a sent mail."""
        whom = _recipient(message)
        if _is_answer(message):
            owner = self._is_owner(whom)
            self._breaker.count_answer(str(message.session), self._clock.monotonic(), owner=owner)
        self.mails.note_sent_mail(message_id, whom, alone=not message.context.cc)

    @for_owner
    def _note_tripped(self, tripped: BreakerOpen, whom: str, now: float) -> None:
        if not self._breaker.is_new(tripped):
            return
        self._breaker_urgent = True
        minutes = round((tripped.until - now) / 60)
        _log.error("mail.breaker_opened", channel=self._name, why=_english(tripped), minutes=minutes)
        if tripped.thread:
            stopped = _("I answer `{whom}` no more in one thread for {n} minutes", whom=whom, n=minutes)
        else:
            stopped = _("I answer no mail on {name} for {n} minutes", name=self._name, n=minutes)
        self._alert(
            "brake",
            _(
                "{stopped}: {why}. It looks like a loop. Answers to mails that arrive meanwhile wait until "
                "then. To end this sooner: squidbot email reset-breaker.",
                stopped=stopped,
                why=tripped.why,
            ),
        )

    @for_owner
    def is_over_limit(self, sender: str, wait_s: float) -> None:
        """Alert the owner that a sender's mail waits over an hour: the sender may be a program."""
        _log.warning("mail.sender_waits", channel=self._name, wait_s=round(wait_s))
        self._alert(
            "limits",  # in one hour one of them is enough, however many addresses somebody has
            _(
                "`{sender}` has received as many answers by mail on {name} as the limits allow for now; the "
                "next one goes out in about {n} hours. If a program writes from that address, list it in "
                "ingest_only_from or remove it from allow_from; the numbers are under limits.",
                sender=sender,
                name=self._name,
                n=round(wait_s / HOUR_S),
            ),
        )

    def describe(self) -> str:
        """The state of the circuit breaker for an operator; empty while it is closed."""
        now = self._clock.monotonic()
        tripped = self._breaker.all_open(now)
        if not tripped:
            return ""
        until = self._clock.now() + timedelta(seconds=max(one.until for one in tripped) - now)
        why = "; ".join(map(_english, tripped[:MAX_REPORTED]))
        more = f" (and {len(tripped) - MAX_REPORTED} threads more)" if len(tripped) > MAX_REPORTED else ""
        at = f"{until.astimezone():%H:%M %Z}"
        return f"the circuit breaker is open until {at} (squidbot email reset-breaker): {why}{more}"

    async def reset_breaker(self) -> list[str]:
        """Reset the circuit breaker on a person's request; returns why it was open."""
        await self.load()
        found = self._breaker.reset(self._clock.monotonic())
        self._breaker_urgent = True
        await self.save()
        _log.warning("mail.breaker_reset", channel=self._name, tripped=len(found))
        return list(map(_english, found))

    async def load(self) -> None:
        """Load, once, the counts of an earlier run."""
        async with self._loading:
            if self._loaded:
                return
            text = await self._read(_LIMITS)
            if text is not None and not self._limiter.load(text):
                _log.warning("limits.unreadable", file=f"{self._state}/{_LIMITS}", error="damaged")
            text = await self._read(_BREAKER)
            if text is not None and not self._breaker.load(text, *self._times()):
                _log.warning("limits.unreadable", file=f"{self._state}/{_BREAKER}", error="damaged")
            self._loaded = True

    async def _read(self, name: str) -> str | None:
        try:
            found = await anyio.to_thread.run_sync(self._state.read, name)
            return None if found is None else found.decode()
        except StateUnreachable as exc:  # what was counted still counts
            raise ChannelUnavailable(f"the record of sent answers cannot be read: {exc}") from exc
        except (OSError, UnicodeError) as exc:
            _log.warning("limits.unreadable", file=f"{self._state}/{name}", error=str(exc))
            return None

    async def save(self, *, now: bool = False) -> None:
        """Store changed counts: at once for the circuit breaker's state, else rarely or with ``now``."""
        async with self._saving:
            if self._limiter.changed:
                await self._write(_LIMITS, self._limiter.dump())
            due = self._clock.monotonic() - self._breaker_saved_at >= SAVE_EVERY_S
            if self._breaker_urgent or (self._breaker.changed and (due or now)):
                self._breaker_urgent = False
                self._breaker_saved_at = self._clock.monotonic()
                await self._write(_BREAKER, self._breaker.dump(*self._times()))

    async def _write(self, name: str, text: str) -> None:
        try:
            await anyio.to_thread.run_sync(self._state.write, name, text.encode())
        except OSError as exc:
            _log.warning("limits.not_saved", file=f"{self._state}/{name}", error=str(exc))

    def _times(self) -> tuple[float, float]:
        return self._clock.monotonic(), self._clock.now().timestamp()


def _recipient(message: OutboundMessage) -> str:
    try:
        return normalise(message.context.reply_to or recipient_of(message.session) or "")
    except AddressInvalid:
        return ""


def _is_answer(message: OutboundMessage) -> bool:
    # What was to be done at a time comes then, whatever anybody writes: no loop goes over it.
    at_a_time = message.notes.job is not None
    # What is said once more by voice was counted as text.
    again = message.context.speech is not None
    return message.kind in (OutboundKind.REPLY, OutboundKind.APOLOGY) and not at_a_time and not again


def _english(tripped: BreakerOpen) -> str:
    with speaking(ENGLISH):
        return tripped.why
