"""
`EmailChannel`: one mailbox as a `Channel`. The position is (UIDVALIDITY, last UID), accepted in one
transaction with the mails; flags and filing follow, and their failures are only logged. The first start skips
what is there; after a renumbering all is read again and recognised by identity (``threads.native_id_of``) and
arrival time. The Message-ID derives from the outbox row, and with ``sent_copy: self`` the copy proves after a
lost confirmation that an answer went out (`probe`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import anyio.lowlevel
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from agent_core.language import _, for_owner
from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from channels.base import (
    Capabilities,
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
    FolderNews,
    Inbox,
    LinkState,
    Receipt,
    Redelivery,
)
from channels.email.compose.outbound_mail import Envelope
from channels.email.config import EmailConfig
from channels.email.imap.housekeeping import Answered, Housekeeping, HousekeepingTask, UploadCopy
from channels.email.imap.mailbox import Connections, Mailbox
from channels.email.loop_guard import LoopGuard
from channels.email.mail_credentials import credentials_of
from channels.email.mail_route import route_of
from channels.email.mail_self_test import examine, status_facts
from channels.email.parse.dsn import BounceReport, in_words
from channels.email.parse.mail_addresses import AddressInvalid, normalise
from channels.email.parse.mail_threads import message_id_of, session_about
from channels.email.receive.crash_suspects import CrashSuspects
from channels.email.receive.folder_news import find_new_mails
from channels.email.receive.mail_attachments import MailAttachmentKeeper
from channels.email.receive.mail_intake import MailIntake, is_ingest_only
from channels.email.receive.mail_receiver import MailAccountParts, MailReceiver
from channels.email.reply_limits import AnswerLimiter
from channels.email.sent_tracker import SentTracker
from channels.email.server_ids import ServerIds, message_id_in_reply
from channels.email.smtp.posting import Posting
from channels.email.smtp.submission import Submission
from channels.email.trust.dkim_alignment import SenderVerifier
from channels.email.trust.dns import DnsLookup, TextRecords
from channels.plugin import ChannelServices

_log = structlog.get_logger(__name__)


def capabilities_of(config: EmailConfig, *, attachments: bool = True) -> Capabilities:
    """``attachments``: whether there is a store that has files to send."""
    return Capabilities(
        Redelivery.REVIEW if config.sent_copy == "none" else Redelivery.PROBE,
        email_style=True,
        max_text_bytes=200_000,
        attachments=attachments,
    )


class EmailDirectMessages:
    """Finds threads with people. An answer to a message of such a thread arrives in the same thread."""

    name: str

    async def direct_session(self, person: str, *, topic: str = "") -> SessionKey:
        """A thread with one person, a new one for each topic."""
        try:
            return session_about(self.name, topic, normalise(person))
        except AddressInvalid as exc:
            raise DeliveryFailed(f"mail cannot be sent to this address: {exc}") from exc

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        """Return True: a mail of ours goes to the one address of its session."""
        try:
            return session.channel == self.name and session.thread == normalise(person)
        except AddressInvalid:
            return False


class EmailChannel(EmailDirectMessages):
    """
    The email channel of one mailbox.

    Its state may be lost; files of people who may not talk are ignored.
    """

    def __init__(self, config: EmailConfig, services: ChannelServices) -> None:
        self.name = name = services.name
        self._services = services
        attachments, state, clock = services.attachments, services.state, services.clock
        self.account = config.address
        self.capabilities = capabilities_of(config, attachments=attachments is not None)

        def welcome(address: str) -> bool:
            return services.may_talk(address) or is_ingest_only(address, config.ingest_only_from)

        self._keeper = MailAttachmentKeeper(config, attachments, welcome)
        self._config = config
        self._clock = clock
        credentials = credentials_of(config, state, clock)
        self._connections = Connections(config, credentials)
        self._submitter = Submission(config, credentials=credentials)
        self._suspects = CrashSuspects(state.local / "reading.json")
        self._posting = Posting(config, self._submitter, attachments, self._connections.tls)
        self._housekeeping = Housekeeping(keyword=config.answered_keyword, processed=config.processed_folder)
        limiter = AnswerLimiter(config.limits)
        self._safety = LoopGuard(
            name, config, limiter, state, clock=clock, alert=services.alert, is_owner=services.is_owner
        )
        self._intake = MailIntake(
            name,
            config,
            limiter,
            welcome,
            is_owner=services.is_owner,
            crowded=self._safety.is_over_limit,
            language_of=services.language_of or (lambda _who: ""),
        )
        self._records = TextRecords(DnsLookup(config.dns_servers), clock.monotonic)
        self._mailbox: Mailbox | None = None
        self.last_contact_at: datetime | None = None
        """When the mail server has last answered or called."""
        self._tell_up: Callable[[str], None] | None = None
        self._told = ""
        self._went_out = SentTracker(clock.monotonic)
        self._server_ids = ServerIds(config.address)
        self._receiving = MailAccountParts(
            intake=self._intake,
            housekeeping=self._housekeeping,
            now=clock.now,
            went_out=self._went_out,
            server_ids=self._server_ids,
            suspects=self._suspects,
            verify=self._verifier(welcome).find if config.dkim == "verify" else None,
            keeper=self._keeper,
            owners=services.owner_addresses,
        )

    def _verifier(self, knows: Callable[[str], bool]) -> SenderVerifier:
        return SenderVerifier(
            self._records,
            lambda: self._clock.now().timestamp(),
            self._config.address,
            knows=knows,
            ingested=lambda address: is_ingest_only(address, self._config.ingest_only_from),
        )

    # ── receiving ──
    async def run(self, inbox: Inbox) -> None:
        """Receive until cancelled; see `channels.base.Channel.run`."""
        inbox.report(LinkState.CONNECTING)
        try:
            await self._safety.load()
            await anyio.to_thread.run_sync(self._suspects.load)
            async with self._connections.open_mailbox() as mailbox:
                self._mailbox = mailbox
                await self._receive(mailbox, inbox)
        except (ChannelAuthFailed, ChannelMisconfigured) as exc:
            inbox.report(LinkState.FAILED, str(exc))
            raise
        except ChannelError as exc:
            inbox.report(LinkState.DOWN, str(exc))
            raise
        finally:
            self._mailbox, self._tell_up = None, None

    async def _receive(self, mailbox: Mailbox, inbox: Inbox) -> None:
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            try:
                await self._start_receiving(tasks, mailbox, inbox)
            except Exception as exc:  # noqa: BLE001 - it is raised again, as itself and not in a group
                failure = exc
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _start_receiving(self, tasks: TaskGroup, mailbox: Mailbox, inbox: Inbox) -> None:
        receiver = MailReceiver(
            mailbox,
            inbox,
            self._receiving,
            before_commit=self._safety.save,
            never_came=self._never_came,
            bounced=self._safety.mails.accept_report,
            undelivered=self._undelivered,
            start=tasks.start_soon,
        )
        inbox.report(LinkState.CATCHING_UP)
        await receiver.start()
        while True:
            mailbox.start_watching()
            await receiver.take_new()
            await self._housekeeping.do(mailbox, receiver.position.uidvalidity)
            self.last_contact_at = self._clock.now()
            if self._tell_up is None:
                facts = {"uid": receiver.position.uid, **status_facts(self._config, mailbox)}
                self._tell_up = partial(_report_up, inbox, facts)
                self._told = self._safety.describe()
                self._tell_up(self._told)
            self._report_breaker()
            await mailbox.wait(receiver.next_try_s)

    def _report_breaker(self) -> None:
        """Note that the circuit breaker opened or closed: it stands in the status."""
        told = self._safety.describe()
        if self._tell_up is not None and told != self._told:
            self._told = told
            self._tell_up(told)

    async def reset_breaker(self) -> list[str]:
        """Reset the circuit breaker on the operator's request; returns why it was open."""
        found = await self._safety.reset_breaker()
        self._report_breaker()
        if self._mailbox is not None:
            self._mailbox.nudge()
        return found

    # ── sending ──
    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Send one message; see `channels.base.Channel.deliver`."""
        message_id = message_id_of(message.id, message.session, account=self.account)
        if self._went_out.is_delivered(message.id):
            return Receipt(message_id)
        if not self._went_out.is_uncertain(message.id):  # what may be out already is not held back
            await self._watch_breaker(message)
        elif self._can_look and await self._taken_after_all(message, uncertain):
            return Receipt(message_id)

        async def past_return() -> None:
            await uncertain()
            self._went_out.mark_uncertain(message.id)

        try:
            mail, said = await self._posting.post(message, past_return)
        except DeliveryUncertain as exc:
            if not self._can_look:
                self._never_known(message, exc)
            raise
        except ChannelError as exc:
            self._went_out.note_rejection(message.id)
            if isinstance(exc, ChannelAuthFailed):
                self._safety.note_login_refusal(exc)
            raise
        self._safety.patience.note_success()
        self._server_ids.learn(message_id_in_reply(said, self._config.smtp.host), mail.message_id)
        self._safety.count_sent_mail(message, mail.message_id)
        self._delivered_now(message)
        if self._config.sent_copy == "append":
            self._add_task(UploadCopy(mail.raw))
        return Receipt(mail.message_id)

    async def _watch_breaker(self, message: OutboundMessage) -> None:
        await self._safety.load()
        try:
            self._safety.before_sending(message)
        except ChannelUnavailable:
            await self._safety.save()
            self._report_breaker()
            raise

    @property
    def _can_look(self) -> bool:
        """Return True if the Sent folder can be searched for copies of our mails."""
        return self._config.sent_copy != "none"

    @for_owner
    def _never_known(self, message: OutboundMessage, error: DeliveryUncertain) -> None:
        told = _("It is not known whether a mail on {name} was sent: {error}", name=self.name, error=error)
        self._services.alert(f"unknown {message.id}", told)

    def _never_came(self, which: str, about: str) -> None:
        """Note that a mail is given up that the server lists and has not handed out for a day."""
        self._services.alert(
            f"mail {self.name} {which}",
            _(
                "The mail server of {name} has listed a mail for a day and does not hand it out, so I could "
                "not read it and gave it up: {about}. Look at it in your mail program or in web mail. If you "
                "can read it there, have it sent once more; otherwise ask the provider.",
                name=self.name,
                about=about,
            ),
            once=which,
        )

    def _undelivered(self, report: BounceReport) -> None:
        """Alert the owner to an undelivered mail, at most hourly per recipient or matching pattern."""
        _log.warning("mail.undelivered", channel=self.name, why=report.why)
        whom = self._safety.mails.recipient_of(report.message_ids)
        self._services.alert(
            f"undelivered {self._intake.matching_pattern(whom) or whom or 'somebody'}", in_words(report)
        )

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
        """Find out whether a mail was sent; see `channels.base.Channel.probe`."""
        message_id = message_id_of(message.id, message.session, account=self.account)
        self._went_out.uncertain_for_s(message.id)
        known = self._went_out.is_delivered(message.id) or self._went_out.has_copy(message_id)
        if known or await self._connections.find_copy(message_id):
            self._delivered_now(message)
            return Receipt(message_id)
        if not self._can_look:
            raise ChannelUnavailable(
                "no copies of sent mails are kept, so whether it was sent cannot be checked"
            )
        left_s = self._config.probe_grace_s - self._went_out.uncertain_for_s(message.id)
        if left_s > 0 and self._config.sent_copy != "append":
            raise ChannelUnavailable(
                f"the sent copy of {message_id} is not there yet; it may still appear within {left_s:.0f} s",
                retry_after_s=min(left_s, 10.0),
            )
        self._went_out.note_rejection(message.id)
        return None

    def _delivered_now(self, message: OutboundMessage) -> None:
        message_id = message_id_of(message.id, message.session, account=self.account)
        copy = self._went_out.note_delivery(message.id, message_id)
        if copy is not None:
            self._add_task(copy)
        if message.kind not in (OutboundKind.REPLY, OutboundKind.APOLOGY):
            return  # the mail that it is about is not answered yet
        route = route_of(message.context)
        if route.uid is not None and route.uidvalidity is not None:
            self._add_task(Answered(route.uid, route.uidvalidity))

    def _add_task(self, task: HousekeepingTask) -> None:
        self._housekeeping.add(task)
        if self._mailbox is not None:
            self._mailbox.nudge()

    async def new_in_folder(self, folder: str, mark: str, *, words: str = "") -> FolderNews:
        """Look at another folder than the inbox; see `channels.base.SupportsFolders`."""
        async with self._connections.open_mailbox() as mailbox:
            return await find_new_mails(mailbox, folder, mark, words)

    # ── hints, care ──
    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Mail cannot show it."""

    async def preview(self, session: SessionKey, text: str) -> None:
        """Mail cannot show it."""

    async def aclose(self) -> None:
        """Release all resources."""
        if self._mailbox is not None:
            self._mailbox.abort()
        await self._safety.save(now=True)

    async def check(self) -> dict[str, str]:
        """Log in, send ourselves a mail and find it, for ``squidbot check``. Raises ChannelError."""

        async def submit(envelope: Envelope, raw: bytes) -> None:
            await self._submitter.submit(
                envelope, raw, context=await self._connections.tls(), uncertain=anyio.lowlevel.checkpoint
            )

        return await examine(self._config, self._connections.open_mailbox, submit, self._clock.now())


def _report_up(inbox: Inbox, facts: Mapping[str, Any], detail: str) -> None:
    inbox.report(LinkState.UP, detail, **facts)
