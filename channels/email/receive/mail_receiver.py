"""
Receives from an open mailbox into the gateway's inbox: new mails, in order, exactly once, whatever they
contain. A round fetches unread UIDs in bounded batches (the owner's first), parses each in a worker thread
under a deadline, and commits those that wait for no proof (`verification_queue`) with the position before the
first that waits. Unreadable mails are accepted as seen with the reason; those not handed out or too slow are
set aside and retried (`fetching`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog

from agent_core.messages import Amendment, InboundMessage
from agent_core.text import one_line
from channels.base import Inbox
from channels.email.imap.housekeeping import FileCopy, Housekeeping
from channels.email.imap.mailbox import HEADER_BYTES, Mailbox, MailInfo, Selected
from channels.email.mail_position import Position
from channels.email.parse.dsn import BounceReport, DeliveryStatus, read_report
from channels.email.parse.mail_threads import OWN_ID_PREFIX
from channels.email.parse.mime import Headers
from channels.email.parse.unreadable import KILLS, TOO_LARGE, TOO_SLOW, headers_of
from channels.email.receive.crash_suspects import MAX_DEATHS, CrashSuspects
from channels.email.receive.mail_attachments import MailAttachmentKeeper
from channels.email.receive.mail_fetching import MAX_MAIL_BYTES, MailFetcher, WithheldMails, batches_by_size
from channels.email.receive.mail_intake import Arrival, MailIntake, OwnCopy, given_up, read_arrival
from channels.email.receive.repeats import PARSE_LIMIT_S, Repeats
from channels.email.receive.verification_queue import ReadMail, VerificationQueue
from channels.email.sent_tracker import SentTracker
from channels.email.server_ids import ServerIds
from channels.email.trust.dkim_alignment import Verification
from channels.email.trust.sender_policy import MailRefused as NotAnswered
from channels.email.trust.sender_policy import claimed_senders, sender_of

BATCH_MAILS = 50
REFILE_UIDS = 200
_PATIENCE_OF_OWNER_S = 1.0
"""The time for which mails that name the owner are read before others."""
PATIENCE_S = 1.0
"""The time for which the mails of one check wait together for proofs; then the proven ones go first."""
BOUNCE = str(NotAnswered.BOUNCE)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailAccountParts:
    """
    The parts of a mailbox that receive and that outlive its connections.

    Args:
        housekeeping: Files our own copies.
        now: The wall clock, for mails without an arrival time.
        broke: See `MailFetcher`.
        verify: Searches a proof of a sender for the raw mail.
        keeper: Stores files; None: left out.
        suspects: The mails in flight when the process died.
        owners: The owner's addresses; their mails are read first.
    """

    intake: MailIntake
    housekeeping: Housekeeping
    now: Callable[[], datetime]
    went_out: SentTracker
    server_ids: ServerIds
    suspects: CrashSuspects
    broke: dict[int, int] = field(default_factory=dict)
    verify: Callable[[bytes, str], Awaitable[Verification]] | None = None
    keeper: MailAttachmentKeeper | None = None
    owners: Sequence[str] = ()


class MailReceiver:
    """
    Receives mails over one connection.

    Args:
        before_commit: Awaited between reading and accepting a batch.
        never_came: Called for a mail that the server does not hand out.
        bounced: Called for each bounce with its verified sender; returns the mails it is evidence for.
        undelivered: Called after the commit of an undelivered mail.
        start: Starts a task that ends with the connection.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        inbox: Inbox,
        parts: MailAccountParts,
        *,
        before_commit: Callable[[], Awaitable[None]],
        never_came: Callable[[str, str], None] = lambda _which, _about: None,
        bounced: Callable[
            [BounceReport, bool, str], Collection[str]
        ] = lambda _report, _outside, _verified: (),
        undelivered: Callable[[BounceReport], None] = lambda _: None,
        start: Callable[..., Any],
    ) -> None:
        self._mailbox = mailbox
        self._inbox = inbox
        self._intake, self._keeper = parts.intake, parts.keeper
        self._repeats = Repeats(inbox, parts.intake)
        self._housekeeping = parts.housekeeping
        self._now = parts.now
        self._went_out, self._server_ids = parts.went_out, parts.server_ids
        self._before_commit = before_commit
        self._fetcher = MailFetcher(mailbox, parts.broke)
        self._never_came = never_came
        self._withheld = WithheldMails()
        self._waiting = VerificationQueue(parts.verify, start=start, news=self._verification_came)
        self._suspects = parts.suspects
        self._looking = False
        self._read_to = 0
        self._ahead: set[int] = set()
        """Mails of the owner behind that, which were read all the same."""
        self._looked_to = 0
        self._verifies = parts.verify is not None
        self._owners = parts.owners
        self._bounced = bounced
        self._undelivered = undelivered
        self.position = Position(0, 0)

    async def start(self) -> None:
        """Open INBOX and find the position to continue at."""
        await self._open()
        self._read_to = self.position.uid

    async def _open(self) -> None:
        selected = await self._mailbox.select("INBOX")
        known = await Position.load(self._inbox)
        if known is None:
            await self._begin(selected)
        elif known.uidvalidity != selected.uidvalidity or known.uid >= selected.uidnext:
            _log.warning("mailbox.renumbered", old=known.uidvalidity, new=selected.uidvalidity)
            self.position = replace(
                known, uidvalidity=selected.uidvalidity, uid=0, again_to=selected.uidnext - 1
            )
        else:
            self.position = known
            self._withheld = WithheldMails(await self._inbox.position("withheld"))
            await self._refile()

    async def _refile(self) -> None:
        """Find copies of our own mails that were seen, but not filed before the end of the last run."""
        lately = max(self.position.uid - REFILE_UIDS, 1)
        uids = await self._mailbox.find_own(self._intake.account, OWN_ID_PREFIX, since_uid=lately)
        seen = [uid for uid in uids if uid <= self.position.uid][-REFILE_UIDS:]
        infos = [info for info in await self._fetcher.infos(seen) if info.size <= MAX_MAIL_BYTES]
        for batch in batches_by_size(infos):
            raws = await self._fetcher.raw_mails(batch)
            for info in batch:
                if info.uid not in raws:
                    continue
                copy = self._intake.own_copy(await self._read(info, raws[info.uid]))
                if copy is not None:
                    await self._file(copy)

    async def _file(self, copy: OwnCopy) -> None:
        """Queue the first copy of our mail for filing; later ones may be forged by recipients."""
        task = FileCopy(copy.uid, self.position.uidvalidity)
        if not self._went_out.is_first_copy(copy.message_id, task):
            _log.warning("mail.copy_not_filed", uid=copy.uid, reason="there was one before")
            return
        if self._went_out.was_sent(copy.message_id) or await self._inbox.delivered_id(copy.message_id):
            self._housekeeping.add(task)
        else:
            self._went_out.note_unknown_copy(copy.message_id, task)

    async def _begin(self, selected: Selected) -> None:
        floor = await self._mailbox.latest_arrival()
        self.position = Position(selected.uidvalidity, selected.uidnext - 1, floor)
        await self._inbox.accept([], self.position.as_values())
        _log.info("mailbox.started", uid=self.position.uid, older_mails=selected.exists)

    async def take_new(self) -> int:
        """Accept all new mails and return their number; some await proof, which ends `Mailbox.wait`."""
        self._looking = True
        await self._take_verified()
        patience_s = PATIENCE_S
        uids = [uid for uid in await self._mailbox.newer_than(self._read_to) if uid not in self._withheld]
        for start in range(0, len(uids), BATCH_MAILS):
            chunk = uids[start : start + BATCH_MAILS]
            infos, now = await self._fetcher.infos(chunk), self._now()
            await self._set_aside(sorted(set(chunk).difference(info.uid for info in infos)))
            for batch in batches_by_size(
                [info for info in infos if not self.position.is_older(info, now=now)]
            ):
                if len(uids) > 1:
                    await self._owners_first()
                    await self._take_verified()
                await self._read_batch([info for info in batch if info.uid not in self._ahead])
                self._read_to = batch[-1].uid
                began = anyio.current_time()
                with anyio.move_on_after(patience_s):
                    await self._waiting.wait_for_proofs(batch[0].uid)
                patience_s = max(patience_s - (anyio.current_time() - began), 0.0)
                await self._take_verified()
                while self._waiting.full:
                    await self._waiting.wait_for_change()
                    await self._take_verified()
            if self._read_to < chunk[-1]:
                # What is older than the first start, or was deleted before we came to it.
                self._read_to = chunk[-1]
                await self._commit([])
        await self._take_verified()
        if passed := {uid for uid in self._ahead if uid <= self._read_to}:
            self._ahead -= passed
        if passed or self._server_ids.news:
            await self._commit([])
        await self._try_withheld()
        self._looking = False
        return len(uids)

    @property
    def next_try_s(self) -> float | None:
        """Seconds until a mail that was set aside is due; None if there is none."""
        return self._withheld.next_s(self._now())

    async def _set_aside(self, uids: Sequence[int]) -> None:
        """Try these mails again later, as far as they were not deleted."""
        for uid in await self._fetcher.existing_uids(uids):
            self._withheld.add(uid, self._now())

    async def _try_withheld(self) -> None:
        """Read due mails set aside; the next try is committed first, in case one kills the process."""
        due = [uid for uid in self._withheld.begin(self._now()) if uid not in self._waiting]
        if not due:
            return
        await self._commit([])
        listed = await self._fetcher.existing_uids(due)
        infos = {info.uid: info for info in await self._fetcher.infos(listed)}
        given_up: list[InboundMessage] = []
        for uid in due:
            info, is_over = infos.get(uid), self._withheld.is_over(uid, self._now())
            raws = await self._fetcher.raw_mails([info], again=not is_over) if info is not None else {}
            if uid not in listed or (info is not None and self.position.is_older(info, now=self._now())):
                self._withheld.discard(uid)
            elif info is not None and uid in raws:
                await self._read_one(info, raws[uid])
            elif is_over:
                given_up.append(await self._given_up(uid, info))
        await self._take_verified()
        await self._commit(given_up)

    async def _given_up(self, uid: int, info: MailInfo | None) -> InboundMessage:
        """Tell the owner what is known of a mail. It stays set aside until that was told for certain."""
        header = Headers(())
        if raw := (await self._fetcher.bodies([uid], header_only=True)).get(uid):
            header = headers_of(raw)
        at = (info.received_at if info is not None else None) or self._now()
        about = f"from {sender_of(header) or 'an unknown sender'}"
        about += f" about {one_line(header.subject(), 80)!r}" if header.subject() else ""
        _log.error("mail.unfetchable", uid=uid)
        about += f", received {at.astimezone():%Y-%m-%d %H:%M %Z}"
        self._never_came(f"{self.position.uidvalidity}-{uid}", about)
        self._withheld.drop_after_grace(uid, self._now())
        return self._intake.unfetchable_mail(uid, at, uidvalidity=self.position.uidvalidity)

    async def _owners_first(self) -> None:
        """Read what the owner has written before what others have sent, however much that is."""
        after, uids = max(self._read_to, self._looked_to), set[int]()
        for address in self._owners:
            uids.update(await self._mailbox.newer_than(after, sender=address))
        waiting, began = sorted(uids), anyio.current_time()
        self._looked_to = after
        for start in range(0, len(waiting), BATCH_MAILS):
            chunk = waiting[start : start + BATCH_MAILS]
            await self._read_those_of_owner(chunk)
            self._looked_to = chunk[-1]
            if anyio.current_time() - began > _PATIENCE_OF_OWNER_S:
                break  # anybody can name the owner as the sender, and others must have their turn

    async def _read_those_of_owner(self, uids: Sequence[int]) -> None:
        uids = [uid for uid in uids if uid not in self._withheld]
        found, now = await self._fetcher.infos(uids), self._now()
        infos = [info for info in found if not self.position.is_older(info, now=now)]
        for batch in batches_by_size(infos, most=HEADER_BYTES):
            raws = await self._fetcher.bodies([info.uid for info in batch], header_only=True)
            for info in batch:
                header = await self._read(info, raws[info.uid], whole=False) if info.uid in raws else None
                if header is not None and self._intake.seems_owners(header, signed=self._verifies):
                    await self._read_batch([info])
                    self._ahead.add(info.uid)

    def _verification_came(self) -> None:
        if not self._looking:
            self._mailbox.nudge()

    async def _read_batch(self, batch: Sequence[MailInfo]) -> None:
        raws = await self._fetcher.raw_mails(batch)
        await self._set_aside([info.uid for info in batch if info.uid not in raws])
        for info in batch:
            if info.uid in raws:
                await self._read_one(info, raws[info.uid])

    async def _read_one(self, info: MailInfo, raw: bytes) -> None:
        arrival = await self._read(info, raw)
        if arrival.trouble == TOO_SLOW and not self._withheld.tries(info.uid):
            self._withheld.add(info.uid, self._now())  # once more, when the machine may be less busy
            return
        senders = frozenset(filter(None, [sender_of(arrival.headers)]))
        self._waiting.add(ReadMail(info, raw, arrival, senders), self._intake.open_question(arrival))

    async def _take_verified(self) -> None:
        """Take in what waits for no proof any more; the position goes no further than to what does."""
        if ready := self._waiting.pop_ready():
            await self._take(sorted(ready, key=lambda mail: mail.info.uid not in self._ahead))

    async def _take(self, ready: Sequence[ReadMail]) -> None:
        messages: list[InboundMessage] = []
        copies: list[OwnCopy] = []
        reports: list[tuple[str, BounceReport, bool]] = []
        for mail in ready:
            await anyio.lowlevel.checkpoint()  # judging a whole batch takes 50 ms
            taken = await self._message_of(mail)
            if isinstance(taken, OwnCopy):
                copies.append(taken)
            else:
                messages.append(taken)
                with self._suspects.in_flight(self._name(mail.info)):
                    reports += await self._reports(taken, mail.raw, mail.arrival)
        for mail in ready:
            self._withheld.discard(mail.info.uid)
        await self._take_in(messages, copies, reports)
        self._suspects.through(self._name(mail.info) for mail in ready)
        for _, report, _ in reports:
            self._undelivered(report)
        for copy in copies:
            await self._file(copy)

    async def _message_of(self, mail: ReadMail) -> InboundMessage | OwnCopy:
        """Return the message with its files. Raises AttachmentsUnavailable."""
        headers = mail.arrival.headers
        ours = await self._server_ids.translate_references(self._inbox, headers.references())
        for given, own in list(ours.items()):
            if not await self._repeats.has_written_to(own, claimed_senders(headers)):
                del ours[given]
        taken = self._taken(mail.arrival, mail.verification or Verification(), ours)
        if not isinstance(taken, InboundMessage):
            return taken
        message = await self._repeats.remove_repeats(taken, mail.arrival)
        return message if self._keeper is None else await self._keeper.keep(message, mail.arrival.mail)

    async def _take_in(
        self,
        messages: Sequence[InboundMessage],
        copies: Sequence[OwnCopy],
        reports: Sequence[tuple[str, BounceReport, bool]],
    ) -> None:
        for copy in copies:
            self._went_out.note_copy(copy.message_id)
            self._server_ids.learn(copy.given_id, copy.message_id)
        await self._before_commit()
        bounces = [
            Amendment(kind="bounce", native_id=each, text=report.why)
            for each, report, evident in reports
            if evident
        ]
        await self._commit(messages, bounces)

    async def _commit(self, messages: Sequence[InboundMessage], amendments: Sequence[Amendment] = ()) -> None:
        first = self._waiting.lowest_waiting(self._withheld)
        uid = self._read_to if first is None else min(self._read_to, first - 1)
        position = replace(self.position, uid=uid)
        values = {**position.as_values(), "withheld": self._withheld.as_value()}
        news = list(self._server_ids.news)
        values |= await self._server_ids.to_commit(self._inbox)
        await self._inbox.accept(messages, values, amendments)
        self._server_ids.note_commit(news)
        self.position = position

    async def _reports(
        self, message: InboundMessage, raw: bytes, arrival: Arrival
    ) -> list[tuple[str, BounceReport, bool]]:
        """Return mails of ours that a bounce reports as failed, each with True if there is evidence."""
        if message.context.refused != BOUNCE or arrival.trouble == KILLS:
            return []
        report = await anyio.to_thread.run_sync(partial(read_report, raw, account=self._intake.account))
        if report is None:
            return []
        verified = message.sender.address if message.sender.verified else ""
        outside = bool(arrival.headers.all("authentication-results"))
        evident = self._bounced(report, outside, verified)
        found: list[tuple[str, BounceReport, bool]] = []
        for message_id in report.message_ids:
            # Nobody can name an id that has not left us, so whoever reports it says that it did.
            self._went_out.note_copy(message_id)
            if report.fate is DeliveryStatus.FAILED and await self._inbox.delivered_id(message_id):
                found.append((message_id, report, message_id in evident))
        return found

    def _taken(
        self, arrival: Arrival, verification: Verification, ours: Mapping[str, str]
    ) -> InboundMessage | OwnCopy:
        taken = self._intake.convert(
            arrival,
            uidvalidity=self.position.uidvalidity,
            verification=verification.by,
            doubt=verification.lacks,
            now=self._now(),
            ours=ours,
        )
        if isinstance(taken, InboundMessage) and taken.context.doubt:
            _log.info("mail.sender_unverified", reason=taken.context.doubt)
        return taken

    async def _read(self, info: MailInfo, raw: bytes, *, whole: bool = True) -> Arrival:
        received_at = info.received_at or self._now()
        deaths = self._suspects.deaths(self._name(info))
        trouble = KILLS if deaths >= MAX_DEATHS else TOO_SLOW
        arrival = Arrival(info.uid, received_at, Headers(()), f"raw-{info.uid}", trouble=trouble)
        if deaths > MAX_DEATHS:
            return _logged(arrival, info)

        def in_flight(read: Callable[[], Arrival]) -> Arrival:
            with self._suspects.in_flight(self._name(info)):
                return read()

        if deaths < MAX_DEATHS:
            whole = whole and info.size <= MAX_MAIL_BYTES
            with anyio.move_on_after(PARSE_LIMIT_S):
                read = partial(_read_guarded, info.uid, received_at, raw, whole)
                arrival = await anyio.to_thread.run_sync(in_flight, read, abandon_on_cancel=True)
                return _logged(arrival, info)
        with anyio.move_on_after(10.0):
            read = partial(given_up, info.uid, received_at, raw, arrival.trouble)
            arrival = await anyio.to_thread.run_sync(in_flight, read, abandon_on_cancel=True)
        return _logged(arrival, info)

    def _name(self, info: MailInfo) -> str:
        return f"{self.position.uidvalidity}-{info.uid}"


def _logged(arrival: Arrival, info: MailInfo) -> Arrival:
    header_alone = arrival.trouble == TOO_LARGE and info.size <= MAX_MAIL_BYTES
    if arrival.trouble and not header_alone:
        _log.warning("mail.unreadable", uid=info.uid, size=info.size, reason=arrival.trouble)
    return arrival


def _read_guarded(uid: int, received_at: datetime, raw: bytes, whole: bool) -> Arrival:  # noqa: FBT001 - for a thread
    try:
        return read_arrival(uid, received_at, raw, whole=whole)
    except Exception as exc:  # noqa: BLE001 - whatever upsets the reader is one mail, and must not be the last
        _log.error("mail.reader_failed", uid=uid, error=type(exc).__name__)
        return given_up(uid, received_at, raw, "reader_failed")
