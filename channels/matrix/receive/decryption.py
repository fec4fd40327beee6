"""
`Decryption`: what the receiving loop uses of encryption. Theory of operation. For each answer of ``/sync``,
in this order: `prepare` (our device is announced), `receive` (room keys and other people's devices), `late`
for messages whose keys have come at last, `decrypt` for each event, `positions` into the transaction that
accepts it all, and then `committed`. Messages without a key become references (``undecryptable``), and a task
of its own, `run`, tells people about them. Events of verifications are passed on wherever they appear.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio
import structlog

from channels.base import ChannelClock, ChannelError, ChannelUnavailable
from channels.matrix.client.homeserver import CLIENT, Homeserver, LinkBroken, quote_path
from channels.matrix.client.json_access import JsonObject, events_of, object_of, text_of
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.crypto.devices import KeyTokenRefused
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from channels.matrix.crypto.key_types import MustBeUnencrypted, NoKey, NotReadable, UnsignedDevice, server_of
from channels.matrix.crypto.undecryptable import WAITING, Reference, UndecryptableEvents
from channels.matrix.crypto.verification import Verifications, is_verification
from channels.matrix.events.room_policy import RoomRules

_LATE_LIMIT_S = 0.5
"""After that the next answer is waited for, with what everybody has said meanwhile."""
_IDLE_S = 600.0
_MEET_LIMIT_S = 12.0
"""Our own server gives up others after ten seconds, and then says what it knows."""
_SILENT_S = 60.0
_log = structlog.get_logger(__name__)
Tell = Callable[[str, str, str, tuple[str, ...]], Awaitable[None]]
"""Room, text, and a key under which the same notice is sent once."""
Save = Callable[[Callable[[], Mapping[str, str]]], Awaitable[None]]


class Decryption:
    """
    Decrypts the messages of one account.

    Messages of people whom the ``rules`` admit are waited for, of ``is_owner`` longest.
    """

    def __init__(
        self,
        homeserver: Homeserver,
        login: MatrixLogin,
        crypto: EncryptionEngine,
        verifications: Verifications,
        clock: ChannelClock,
        *,
        user_id: str,
        rules: RoomRules,
        is_owner: Callable[[str], bool] = lambda _user: False,
    ) -> None:
        self._homeserver = homeserver
        self._login = login
        self._crypto = crypto
        self._verifications = verifications
        self._clock = clock
        self._user_id = user_id
        self._rules = rules
        self._is_owner = is_owner
        self._waiting = UndecryptableEvents(is_owner, rules.language_of)
        self._handed_over: list[str] = []
        self._in_hand: set[str] = set()
        """Events with late keys that are being read."""
        self._news = anyio.Event()
        self._expected: set[str] = set()
        self._questions = anyio.Event()
        self._silent: dict[str, float] = {}
        """Servers that hung when they were asked for devices, and until when they are not asked."""
        self._unreadable = 0
        self._look = True
        """Whether keys have come since references were looked through."""
        self._looked = 0
        """How many were looked at since then, at most."""
        self.has_more = False
        """Whether `late` has left something for the next time."""

    def start(self, crypto: str | None, waiting: str | None) -> None:
        """Start a run with the positions that were last committed."""
        self._crypto.start(crypto)
        self._waiting.load(waiting)

    async def prepare(self) -> None:
        """Announce our device. Raises `ChannelError`: that fails, or fails now."""
        for _ in range(4):
            used = self._homeserver.credentials
            try:
                await self._crypto.ready()
                return
            except KeyTokenRefused as refused:
                if used is not None:
                    await self._login.renew(used, refused.answer)
        raise ChannelUnavailable("the homeserver refuses each new token")

    def receive(self, body: JsonObject) -> None:
        """Process the part of an answer that is not about rooms."""
        for event in events_of(body, "to_device"):
            if event.get("type") == "m.room_key.withheld":
                if self._rules.is_context(
                    text_of(object_of(event, "content"), "room_id"), text_of(event, "sender")
                ):
                    self._waiting.withheld(event)
            else:
                self._verifications.learn("", event)
        if self._crypto.receive(body):
            self._look, self._looked = True, 0
        if self._crypto.signed_only:
            self._learn_waiting(object_of(body, "device_lists").get("changed"))

    def _learn_waiting(self, changed: object) -> None:
        """Ask for the devices of people whose messages wait: they may have signed one."""
        people = {one for one in changed if isinstance(one, str)} if isinstance(changed, list) else set[str]()
        if found := people & self._waiting.senders():
            self._expected |= found
            self._questions.set()

    async def learn_senders(self, events: Iterable[JsonObject]) -> None:
        """
        Learn encrypted senders' devices where that decides what is read. Raises ChannelUnavailable.

        An unresponsive server is waited for once a minute; else the known devices must do.
        """
        if not self._crypto.signed_only:
            return
        now = self._now()
        self._silent = {
            server: until for server, until in self._silent.items() if 0 < until - now <= _SILENT_S
        }
        senders = {text_of(one, "sender") for one in events if one.get("type") == "m.room.encrypted"}
        wanted = [
            sender
            for sender in sorted(senders - {self._user_id})
            if self._rules.admits(sender)
            and (self._is_owner(sender) or server_of(sender) not in self._silent)
        ]
        if not wanted:
            return
        begun = anyio.current_time()
        try:
            with anyio.move_on_after(_MEET_LIMIT_S):
                await self._crypto.learn_devices(wanted)
        except KeyTokenRefused as refused:
            raise ChannelUnavailable("the token was refused while keys were asked for") from refused
        except LinkBroken as error:
            raise ChannelUnavailable(str(error)) from error
        if anyio.current_time() - begun < 3.0:
            return  # nobody hung: whose devices are not known has none
        for sender in wanted:
            if not self._crypto.is_known(sender) and server_of(sender) != server_of(self._user_id):
                self._silent[server_of(sender)] = self._now() + _SILENT_S

    def decrypt(self, room_id: str, event: JsonObject) -> JsonObject | None:
        """The decrypted event; None if it cannot be decrypted now. Other events pass through."""
        if event.get("type") != "m.room.encrypted":
            if is_verification(event):
                self._verifications.learn(room_id, event)
            return event
        if event.get("sender") == self._user_id:
            return None
        content, event_id = object_of(event, "content"), text_of(event, "event_id")
        if not content or "redacted_because" in object_of(event, "unsigned"):
            return event
        try:
            clear = self._crypto.decrypt(room_id, event)
        except NoKey as missing:
            sender = text_of(event, "sender")
            if event_id and self._rules.is_context(room_id, sender):
                self._wait_for_key(room_id, event_id, sender, missing)
            return None
        except NotReadable as error:
            if isinstance(error, MustBeUnencrypted):
                _log.info("matrix.event_ignored", room=room_id, reason="encrypted", type=str(error))
            else:
                self._unreadable += 1
                _log.warning("matrix.message_unreadable", room=room_id, reason=str(error))
            return None
        if is_verification(clear):
            self._verifications.learn(room_id, clear)
        return clear

    def _wait_for_key(self, room_id: str, event_id: str, sender: str, missing: NoKey) -> None:
        session_id, is_unsigned = missing.session_id[:100], isinstance(missing, UnsignedDevice)
        if is_unsigned and not self._crypto.is_known(sender):  # their server has not said which they have
            is_unsigned = False
            self._expected.add(sender)
            self._questions.set()
        _log.info(
            "matrix.key_missing", room=room_id, event_id=event_id, session=session_id, unsigned=is_unsigned
        )
        now = self._now()
        self._waiting.add(room_id, event_id, session_id, sender=sender, now=now, unsigned=is_unsigned)

    def peek(self, room_id: str, event: JsonObject) -> JsonObject | None:
        """A decrypted event, even our own, without any side effect; None if it cannot be decrypted."""
        if event.get("type") != "m.room.encrypted":
            return event
        try:
            return self._crypto.decrypt(room_id, event)
        except (NoKey, NotReadable, ChannelError):
            return None

    def forget(self, room_id: str, event_id: str, sender: str) -> None:
        """Note that a message of ``sender`` was redacted in its room: nobody waits for its key."""
        self._waiting.drop_from(room_id, event_id, sender)

    async def late_messages(self) -> list[tuple[str, JsonObject, float]]:
        """Messages, still encrypted, whose keys have arrived, in order: room, event, time of arrival."""
        found: list[tuple[str, JsonObject, float]] = []
        self.has_more = False
        if not self._look:
            return found
        until = anyio.current_time() + _LATE_LIMIT_S
        readable = [
            one for one in self._waiting.readable(self._crypto.has_key) if one.event_id not in self._in_hand
        ]
        for one in readable[:50]:
            if anyio.current_time() > until:
                break
            self._looked += 1
            path = f"{CLIENT}/rooms/{quote_path(one.room_id)}/event/{quote_path(one.event_id)}"
            try:
                answer = await self._homeserver.request("GET", path)
            except LinkBroken as error:
                _log.info("matrix.late_deferred", error=str(error))
                self._looked = 0
                return found
            if answer.is_success and self._is_still_secret(one.room_id, answer.body):
                self._waiting.try_later(one.event_id)  # whoever has sent it does not stand in others' way
                continue
            if answer.is_success:
                found.append((one.room_id, answer.body, one.since))
                self._in_hand.add(one.event_id)
                _log.info("matrix.key_arrived", room=one.room_id, event_id=one.event_id)
                continue
            if not answer.errcode or answer.status not in (403, 404):
                self._looked = 0
                return found
            self._handed_over.append(one.event_id)
        self._look = self.has_more = self._looked < len(readable)
        return found

    def _is_still_secret(self, room_id: str, event: JsonObject) -> bool:
        """Return True if the received key does not fit the event: it starts with a later message."""
        try:
            self._crypto.decrypt(room_id, event)
        except NoKey:
            return True
        except NotReadable:
            pass
        return False

    def note_acceptance(self, event_id: str) -> dict[str, str]:
        """The event that `late` returned is accepted with this position."""
        self._in_hand.discard(event_id)
        self._handed_over.append(event_id)
        return {WAITING: self._waiting.dump(without=self._handed_over)}

    def positions(self) -> dict[str, str]:
        """The values to commit with the messages."""
        return {**self._crypto.position(), WAITING: self._waiting.dump(without=self._handed_over)}

    def forget_room(self, room_id: str) -> None:
        """Note that the bot has left a room: what waits there for a key is not answered."""
        self._waiting.drop_room(room_id)

    async def note_commit(self, rooms: Iterable[str] = ()) -> None:
        """Note that the messages are committed; ``rooms`` are those that the bot is in."""
        self._waiting.drop(self._handed_over)
        self._handed_over.clear()
        if self._waiting.next_at() is not None:
            self._wake()
        await self._crypto.maintain(rooms=rooms, waiting=self._waiting.sessions)
        self._crypto.to_repair.set()

    def prefetch_devices(self, sender: str) -> None:
        """
        Somebody will get an answer: fetch their devices, if necessary, while the answer is made.

        Synapse says of whoever speaks that their devices have changed. People on other servers are left to
        the sending, which has a limit of time for each of them.
        """
        if server_of(sender) == server_of(self._user_id) and len(self._expected) < 100:
            self._expected.update((sender, self._user_id))
            self._questions.set()

    def facts(self) -> dict[str, Any]:
        """Facts for the operator."""
        return {
            **self._crypto.facts(),
            **self._waiting.facts(),
            "encrypted_messages_unread": self._unreadable,
        }

    async def run(self, tell: Tell, save: Save) -> None:
        """Answer verifications, repair sessions and report unreadable messages, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._verifications.run)
            group.start_soon(self._repair)
            group.start_soon(self._learn_expected)
            await self._deliver_notices(tell, save)

    async def _repair(self) -> None:
        while True:
            await self._crypto.to_repair.wait()
            self._crypto.to_repair = anyio.Event()
            await self._crypto.repair()

    async def _learn_expected(self) -> None:
        while True:
            await self._questions.wait()
            self._questions = anyio.Event()
            wanted, self._expected = self._expected, set()
            try:
                with anyio.move_on_after(10.0):
                    await self._crypto.learn_devices(wanted)
            except Exception as error:  # noqa: BLE001 - whoever sends to them asks again, and says what is wrong
                _log.debug("matrix.devices_not_learned", error=type(error).__name__)
            if self._crypto.signed_only and not wanted.isdisjoint(self._waiting.senders()):
                self._look, self._looked = True, 0

    async def _deliver_notices(self, tell: Tell, save: Save) -> None:
        """One notice does not wait for another: a room of which the server is slow holds up no other."""
        async with anyio.create_task_group() as notices:
            while True:
                news, next_at = self._news, self._waiting.next_at()
                pause_s = _IDLE_S if next_at is None else max(next_at - self._now(), 0.0)
                with anyio.move_on_after(min(pause_s, _IDLE_S)):
                    await news.wait()
                # Not at once: a key often comes with the next answer.
                await anyio.sleep(0.3)
                for room_id, text, references in self._waiting.due_notices(self._now()):
                    self._waiting.begin_notice(references)
                    notices.start_soon(self._deliver_notice, tell, save, room_id, text, references)

    async def _deliver_notice(
        self, tell: Tell, save: Save, room_id: str, text: str, references: Sequence[Reference]
    ) -> None:
        once = hashlib.sha256(references[0].event_id.encode()).hexdigest()[:24]
        people = tuple(dict.fromkeys(one.sender for one in references))
        try:
            await tell(room_id, text, f"unread-{once}", people)
        except ChannelUnavailable as error:
            _log.info("matrix.notice_deferred", room=room_id, error=str(error))
            await anyio.sleep(5.0)
            self._waiting.fail_notice(references)
            self._wake()
            return
        except ChannelError as error:
            _log.warning("matrix.notice_failed", room=room_id, error=str(error))
        self._waiting.finish_notice(references, now=self._now())
        self._wake()
        await save(lambda: {WAITING: self._waiting.dump()})

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def _now(self) -> float:
        return self._clock.now().timestamp()
