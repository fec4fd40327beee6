"""
`EmailChannel`: one mailbox as a `Channel`.

Receiving. The position is (UIDVALIDITY, highest UID taken in); a batch of mails and the position behind it
are accepted in one transaction, and only then does anything happen in the mailbox. The very first start
puts the position behind everything that is there, once and for ever. If the server renumbers its mails, all
of them are read again: what is known is recognised by its identity (``threads.native_id_of``), what is
older than the first start by its arrival time.

Sending. The Message-ID is made from the outbox row. With ``sent_copy: self`` every mail also goes to
ourselves, so the one submission that the server confirms or not, delivers both: when the confirmation is
lost, the copy in INBOX or Sent tells whether the answer went out (`probe`), and it is filed under Sent when
it arrives.

Housekeeping (flags, filing) is done between two looks, after the fact, and its failures are only logged.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Protocol

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog

from agent_core.messages import OutboundMessage, SessionKey
from channels.attachments import AttachmentStore
from channels.base import (
    Capabilities,
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
    DeliveryUncertain,
    Inbox,
    LinkState,
    Receipt,
    Redelivery,
)
from channels.email.addresses import find_addresses
from channels.email.attachments import Keeper
from channels.email.chores import Answered, Chore, Chores, UploadCopy
from channels.email.config import EmailConfig
from channels.email.dsn import Report, in_words
from channels.email.examine import examine, status_facts
from channels.email.intake import Intake
from channels.email.limits import AnswerLimiter
from channels.email.login_source import credentials_of
from channels.email.mailbox import Mailbox, Timing
from channels.email.mime import Headers
from channels.email.names import DnsLookup, Lookup, TextRecords
from channels.email.outbound import Envelope
from channels.email.posting import Posting
from channels.email.reaching import LetterReaching
from channels.email.receiver import Receiver
from channels.email.safety import Alert, Safety
from channels.email.sender_proof import SenderProof
from channels.email.submit import Submitter, SubmitTiming
from channels.email.threads import message_id_of
from channels.email.tls import verifying_context
from channels.email.tokens import AskProvider
from channels.email.went_out import WentOut

__all__ = ["Clock", "EmailChannel"]

_PROBE_AGAIN_S = 10.0
_log = structlog.get_logger(__name__)


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """The wall clock: an aware UTC datetime."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class EmailChannel(LetterReaching):
    """
    One mailbox.

    Args:
        name: The key under ``channels:``.
        config: The settings.
        state_dir: A folder of its own, for what is good to know after a restart and no harm to lose.
        clock: Where time comes from.
        timing, submit_timing: How long things may take.
        knows: Whether the gateway would let an address in if it were proven; others are not looked into.
        alert: Tells the operator that something was stopped.
        lookup: One question to DNS.
        ask: One question to a provider of tokens.
        attachments: Where the files of mails are; without it they are only named.
    """

    def __init__(
        self,
        name: str,
        config: EmailConfig,
        *,
        state_dir: Path,
        clock: Clock,
        timing: Timing | None = None,
        submit_timing: SubmitTiming | None = None,
        knows: Callable[[str], bool] = lambda _: True,
        alert: Alert = lambda _about, _text: None,
        lookup: Lookup | None = None,
        ask: AskProvider | None = None,
        attachments: AttachmentStore | None = None,
    ) -> None:
        self.name = name
        self.account = config.address
        self.capabilities = Capabilities(
            Redelivery.PARK if config.sent_copy == "none" else Redelivery.PROBE,
            letters=True,
            max_text_bytes=200_000,
            attachments=attachments is not None,
        )
        self._keeper = Keeper(config, attachments, knows)
        self._alert = alert
        self._config = config
        self._clock = clock
        self._timing = timing or Timing()
        self._credentials = credentials_of(config, state_dir, clock, ask)
        self._submitter = Submitter(config, submit_timing, self._credentials)
        self._posting = Posting(config, self._submitter, attachments, self._tls)
        self._chores = Chores(keyword=config.answered_keyword, processed=config.processed_folder)
        limiter = AnswerLimiter(config.limits)
        self._safety = Safety(
            name, config, limiter, state_dir / "answer-limits.json", clock=clock, alert=alert
        )
        self._intake = Intake(name, config, limiter, self._safety.is_braked)
        self._prove = _prover(config, clock, knows, lookup).find if config.dkim == "verify" else None
        self._mailbox: Mailbox | None = None
        self.heard_at: datetime | None = None
        """When the mail server has last answered or called."""
        self._context: ssl.SSLContext | None = None
        self._context_lock = anyio.Lock()
        self._stubborn: dict[int, int] = {}
        self._went_out = WentOut(clock.monotonic)

    # ── receiving ──
    async def run(self, inbox: Inbox) -> None:
        """Receive until cancelled; see `channels.base.Channel.run`."""
        inbox.report(LinkState.CONNECTING)
        try:
            await self._safety.load()
            async with self._open_mailbox() as mailbox:
                self._mailbox = mailbox
                await self._receive(mailbox, inbox)
        except (ChannelAuthFailed, ChannelMisconfigured) as exc:
            inbox.report(LinkState.FAILED, str(exc))
            raise
        except ChannelError as exc:
            inbox.report(LinkState.DOWN, str(exc))
            raise
        finally:
            self._mailbox = None

    async def _receive(self, mailbox: Mailbox, inbox: Inbox) -> None:
        receiver = Receiver(
            mailbox,
            inbox,
            self._intake,
            self._chores,
            now=self._clock.now,
            own_copy_seen=self._went_out.copy_came,
            just_answered=self._just_answered,
            before_commit=self._safety.save,
            stubborn=self._stubborn,
            prove=self._prove,
            bounced=self._safety.bounced,
            keeper=self._keeper,
            undelivered=self._undelivered,
        )
        inbox.report(LinkState.CATCHING_UP)
        await receiver.start()
        told = False
        while True:
            mailbox.look()
            await receiver.take_new()
            await self._chores.do(mailbox, receiver.position.uidvalidity)
            self.heard_at = self._clock.now()
            if not told:
                told = True
                facts = status_facts(self._config, mailbox)
                inbox.report(LinkState.UP, uid=receiver.position.uid, **facts)
            await mailbox.wait()

    def _just_answered(self, headers: Headers) -> bool:
        return self._went_out.just_answered(find_addresses(headers.first("from") or ""))

    # ── sending ──
    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Send one message; see `channels.base.Channel.deliver`."""
        message_id = message_id_of(message.id, message.session, account=self.account)
        if self._went_out.is_delivered(message.id):
            return Receipt(message_id)
        if not self._went_out.in_doubt(message.id):  # what may be out already is not held back
            self._safety.before_sending(message)
        elif self._can_look and await self._taken_after_all(message, uncertain):
            return Receipt(message_id)

        async def past_return() -> None:
            await uncertain()
            self._went_out.doubt(message.id)

        try:
            mail = await self._posting.post(message, past_return)
        except DeliveryUncertain as exc:
            if not self._can_look:
                self._alert(
                    f"unknown {message.id}", f"Nobody knows whether a mail on {self.name} went out: {exc}"
                )
            raise
        except ChannelError as exc:
            self._went_out.refused(message.id)
            if isinstance(exc, ChannelAuthFailed):
                self._safety.patience.refused(exc)
            raise
        self._safety.patience.accepted()
        self._safety.sent(message, mail.message_id)
        self._delivered_now(message, mail.envelope.recipient)
        if self._config.sent_copy == "append":
            self._add_chore(UploadCopy(mail.raw))
        return Receipt(mail.message_id)

    @property
    def _can_look(self) -> bool:
        """Whether a copy of what we have sent can be found."""
        return self._config.sent_copy != "none"

    def _undelivered(self, report: Report) -> None:
        """A mail of ours came back: its row says so now, and the owner is told, once an hour for each."""
        _log.warning("mail.undelivered", channel=self.name, why=report.why)
        self._alert(f"undelivered {report.recipient or 'somebody'}", in_words(report))

    async def _taken_after_all(
        self, message: OutboundMessage, uncertain: Callable[[], Awaitable[None]]
    ) -> bool:
        """Look for a mail that an earlier attempt may have sent, should nobody have asked `probe` first."""
        await uncertain()
        try:
            return await self.probe(message) is not None
        except ChannelError as exc:
            raise DeliveryUncertain(str(exc), retry_after_s=exc.retry_after_s) from exc

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Find out whether a mail went out; see `channels.base.Channel.probe`."""
        message_id = message_id_of(message.id, message.session, account=self.account)
        self._went_out.doubted_for(message.id)
        known = self._went_out.is_delivered(message.id) or self._went_out.has_copy(message_id)
        if known or await self._find(message_id):
            self._delivered_now(message, None)
            return Receipt(message_id)
        if not self._can_look:
            raise ChannelUnavailable("there is no copy of what was sent, so nobody can look")
        left_s = self._config.probe_grace_s - self._went_out.doubted_for(message.id)
        if left_s > 0 and self._config.sent_copy != "append":
            raise ChannelUnavailable(
                f"the copy of {message_id} is not there; it may still come within {left_s:.0f} s",
                retry_after_s=min(left_s, _PROBE_AGAIN_S),
            )
        self._went_out.refused(message.id)
        return None

    async def _find(self, message_id: str) -> bool:
        """Look on a connection of its own, in INBOX first: filing moves a copy from there to Sent."""
        try:
            async with self._open_mailbox() as mailbox:
                await mailbox.select("INBOX", read_only=True)
                if await mailbox.find(message_id, self.account):
                    return True
                await mailbox.select(await mailbox.sent_folder(), read_only=True)
                return bool(await mailbox.find(message_id, self.account))
        except (ChannelAuthFailed, ChannelMisconfigured) as exc:
            raise ChannelUnavailable(f"cannot look for the copy: {exc}") from exc

    def _delivered_now(self, message: OutboundMessage, recipient: str | None) -> None:
        self._went_out.delivered(message.id, recipient)
        uid, uidvalidity = message.context.get("uid"), message.context.get("uidvalidity")
        if isinstance(uid, int) and isinstance(uidvalidity, int):
            self._add_chore(Answered(uid, uidvalidity))

    def _add_chore(self, chore: Chore) -> None:
        self._chores.add(chore)
        if self._mailbox is not None:
            self._mailbox.nudge()

    # ── hints, care ──
    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Mail cannot show it."""

    async def preview(self, session: SessionKey, text: str) -> None:
        """Mail cannot show it."""

    async def aclose(self) -> None:
        """Let go of everything."""
        if self._mailbox is not None:
            self._mailbox.abort()

    async def check(self) -> dict[str, str]:
        """
        Log in on both sides, send ourselves a mail and find it: for ``squidbot check``.

        Raises:
            ChannelError: It cannot be done; why, in plain words.
        """

        async def submit(envelope: Envelope, raw: bytes) -> None:
            await self._submitter.submit(
                envelope, raw, context=await self._tls(), uncertain=anyio.lowlevel.checkpoint
            )

        return await examine(self._config, self._open_mailbox, submit, self._clock.now())

    async def _tls(self) -> ssl.SSLContext | None:
        if self._config.imap.security == "none" and self._config.smtp.security == "none":
            return None
        async with self._context_lock:
            if self._context is None:
                self._context = await anyio.to_thread.run_sync(verifying_context, self._config.tls_ca_file)
            return self._context

    @asynccontextmanager
    async def _open_mailbox(self) -> AsyncIterator[Mailbox]:
        context = await self._tls()
        async with Mailbox.open(self._config, context, self._timing, self._credentials) as mailbox:
            yield mailbox


def _prover(
    config: EmailConfig, clock: Clock, knows: Callable[[str], bool], lookup: Lookup | None
) -> SenderProof:
    records = TextRecords(lookup or DnsLookup(config.dns_servers), clock.monotonic)
    return SenderProof(records, lambda: clock.now().timestamp(), knows)
