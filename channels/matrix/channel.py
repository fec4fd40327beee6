"""
`MatrixChannel`: puts the parts of the Matrix channel together and owns their lifetime. One connection lives
from the first `MatrixChannel.run` to `MatrixChannel.aclose`; a run that ends and starts again uses the same.
What is between two runs, such as the answers that are sent while the daemon drains, can therefore still be
delivered. nio is imported in a worker thread, at the first run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel

from agent_core.messages import MessageContext, OutboundMessage, SessionKey
from channels.base import (
    AccountFinding,
    AckState,
    Capabilities,
    ChannelError,
    ChannelUnavailable,
    DeliveryFailed,
    Inbox,
    LinkState,
    PlaceRules,
    Receipt,
    Redelivery,
)
from channels.matrix.admin import MatrixAdmin
from channels.matrix.assembly import (
    Connect,
    Machines,
    connect_by_nio,
    introduce,
    nio_machines,
    open_crypto,
    open_decryption,
)
from channels.matrix.client.homeserver import Homeserver, link_errors
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.config import MatrixConfig
from channels.matrix.crypto.account_check import check_account, encryption_findings
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from channels.matrix.events.inbound_events import MatrixRoute
from channels.matrix.events.outbound_events import in_room, is_first_part, notice
from channels.matrix.events.room_policy import RoomRules
from channels.matrix.receive.decryption import Decryption
from channels.matrix.receive.event_handler import EventHandler
from channels.matrix.receive.reply_context import read_plain_event
from channels.matrix.receive.sync_loop import SyncLink, SyncReceiver
from channels.matrix.rooms.backfill import check_room
from channels.matrix.rooms.direct_rooms import DIRECTS, DirectRooms
from channels.matrix.rooms.invites import Invites
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.send.event_sender import EventSender
from channels.matrix.send.previews import StreamingPreview
from channels.matrix.send.reactions import AckReactions
from channels.matrix.send.room_resolution import final_receipt, next_room_error, resolve
from channels.matrix.send.typing_and_receipts import TypingAndReceipts
from channels.plugin import ChannelServices

_Task = Callable[[], Coroutine[Any, Any, None]]


_MAX_TEXT_BYTES = 16_000
"""An event holds 65,536 bytes; the text is in it twice, and its HTML can be much longer."""


def capabilities_of(config: MatrixConfig, *, attachments: bool = True) -> Capabilities:
    """``attachments``: whether there is a store that has files to send."""
    return Capabilities(
        redelivery=Redelivery.SAME_KEY,
        typing=config.display.typing,
        previews=config.streaming.enabled,
        acknowledgements=config.streaming.enabled or config.ack_reactions,
        max_text_bytes=_MAX_TEXT_BYTES,
        edits=True,
        attachments=attachments,
    )


class MatrixChannel:
    """
    A channel to one Matrix account.

    Args:
        services: ``state`` has login and keys; invitations of who may talk are accepted.
    """

    def __init__(self, config: MatrixConfig, services: ChannelServices) -> None:
        self.name = services.name
        self.account = config.user_id
        self.capabilities = capabilities_of(config, attachments=services.attachments is not None)
        self._config = config
        self._state = services.state
        self._clock = services.clock
        self._may_invite = services.may_talk
        self._is_owner = services.is_owner
        self._language_of = services.language_of or (lambda _user: "")
        self._attachments = services.attachments
        self.connect: Connect = connect_by_nio
        self.machines: Machines | None = nio_machines
        """Opens the keys of (folder, user, store key); None: nothing is encrypted."""
        self._homeserver: Homeserver | None = None
        self._typing_receipts: TypingAndReceipts | None = None
        self._sending: EventSender | None = None
        self._events: EventHandler | None = None
        self._ack_reactions: AckReactions | None = None
        self._directs: DirectRooms | None = None
        self._preview = StreamingPreview(services.name, config.user_id, config.streaming, services.clock)
        self._crypto: EncryptionEngine | None = None
        self._login: MatrixLogin | None = None
        self._rooms: Rooms | None = None
        self._rules = RoomRules(config, str)
        self._receiver: SyncReceiver | None = None
        self.admin: MatrixAdmin | None = None
        """What an operator can ask about encryption, once there is a connection."""

    async def run(self, inbox: Inbox) -> None:
        """Receive until cancelled; see `Channel.run`."""
        inbox.report(LinkState.CONNECTING)
        homeserver, login = await self._connected()
        await login.enter()
        inbox.report(LinkState.CATCHING_UP)
        link = SyncLink(self._clock)
        rooms = self._rooms = Rooms(self.account)
        sender = EventSender(
            self._config,
            homeserver,
            login,
            rooms,
            is_current=link.is_current,
            now=self._clock.now,
            crypto=self._crypto,
            attachments=self._attachments,
        )
        typing_receipts = TypingAndReceipts(homeserver, self.account)
        invites = Invites(
            homeserver,
            rooms,
            self._clock,
            user_id=self.account,
            may_invite=self._may_invite,
            is_owner=self._is_owner,
        )
        directs = DirectRooms(
            homeserver,
            rooms,
            partial(inbox.accept, []),
            user_id=self.account,
            encrypted=self._config.encrypt_new_rooms and self._crypto is not None,
            expects=invites.expects,
        )
        directs.load(await inbox.position(DIRECTS))
        events, decryption = await self._open_reading(inbox, homeserver, login, rooms, sender)
        receiver = self._receiver = SyncReceiver(
            login,
            events,
            invites=invites,
            typing_receipts=typing_receipts,
            link=link,
            on_up=partial(self._come_up, sender, typing_receipts, directs),
            decryption=decryption,
            attachments=self._attachments,
        )
        beside = self._tasks_of(receiver, typing_receipts, invites, sender, decryption)
        failed = await _end_of(receiver.run, beside)
        self._typing_receipts = self._directs = None
        if failed is not None:
            raise failed

    async def _open_reading(
        self, inbox: Inbox, homeserver: Homeserver, login: MatrixLogin, rooms: Rooms, sender: EventSender
    ) -> tuple[EventHandler, Decryption | None]:
        """Open what reads events in this run."""
        rules = self._rules = RoomRules(
            self._config, rooms.conversation_of, self._may_invite, self._language_of
        )
        decryption, self.admin = open_decryption(
            self._config,
            homeserver,
            login,
            self._crypto,
            clock=self._clock,
            rules=rules,
            is_owner=self._is_owner,
            send_in_room=sender.send_event,
        )
        me = await introduce(self._config, self.name, homeserver)
        self._events = EventHandler(
            homeserver,
            inbox,
            me=me,
            rooms=rooms,
            clock=self._clock,
            rules=rules,
            decrypt=decryption.peek if decryption is not None else read_plain_event,
            is_owner=self._is_owner,
        )
        return self._events, decryption

    def _tasks_of(
        self,
        receiver: SyncReceiver,
        typing_receipts: TypingAndReceipts,
        invites: Invites,
        sender: EventSender,
        decryption: Decryption | None,
    ) -> list[_Task]:
        """Everything of a run that goes on while it receives."""
        beside: list[_Task] = [
            typing_receipts.run,
            partial(self._preview.run, sender),
            partial(invites.run, receiver.save_invites),
            receiver.fetching.run,
            receiver.gaps.run,
        ]
        if self._ack_reactions is not None:
            beside.append(self._ack_reactions.run)
        if decryption is not None:
            beside.append(partial(decryption.run, partial(self._say_once, sender), receiver.save))
        return beside

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Send one message; see `Channel.deliver`."""
        if self._sending is None:
            raise ChannelUnavailable("not connected to the homeserver yet")  # until the link is up
        message = await resolve(message, homeserver=self._homeserver, direct_session=self.direct_session)
        sending, placed = self._sending, in_room(message, self._room_of(message.session))
        answers = is_first_part(placed)
        previewed = await self._preview.final_event_id(placed.context, sending) if answers else None
        if self._ack_reactions is not None:
            self._ack_reactions.note_event()
        try:
            with nullcontext() if self._typing_receipts is None else self._typing_receipts.yield_to_answer():
                taken = await sending.deliver(placed, uncertain=uncertain, previewed=previewed)
        except DeliveryFailed as error:
            raise await self._meant(error, placed) from error
        except ChannelUnavailable:
            if self._ack_reactions is not None:
                self._ack_reactions.rest()
            raise
        if answers:
            self._preview.done(placed.context.read_route(MatrixRoute).event_id)
        elif is_first_part(message):
            route = message.context.read_route(MatrixRoute)
            self._preview.remove_in_old_room(route.room or message.session.conversation, route.event_id)
        if self._events is not None:
            self._events.note_answer(
                placed.session.conversation, placed.context.read_route(MatrixRoute).thread
            )
        return final_receipt(taken, placed, self._rooms)

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Never needed: a homeserver recognises a repeated message by its transaction id."""
        raise ChannelUnavailable("a Matrix message is sent again, not looked up")

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Show or hide a typing notice; returns at once."""
        if self._typing_receipts is not None and self._config.display.typing:
            self._typing_receipts.typing(self._room_of(session), on=on, who=str(session))

    async def preview(self, session: SessionKey, text: str) -> None:
        """Show the unfinished answer, when its turn comes; returns at once."""
        if self._config.streaming.enabled:
            self._preview.update(session, text)

    async def acknowledge(self, session: SessionKey, context: MessageContext, stage: AckState) -> None:
        """Show a message's progress; returns at once. See `channels.base.SupportsAcknowledgements`."""
        route = context.read_route(MatrixRoute)
        room_id = route.room or self._room_of(session)
        if self._config.streaming.enabled:
            if stage is AckState.RECEIVED:
                self._preview.note_question(session, room_id, context)
            else:
                self._preview.end_preview(room_id, context, stage)
        gone = self._events is not None and self._events.is_gone(room_id, route.event_id, route.sender)
        gone = gone or bool(context.left_over)
        if self._ack_reactions is not None and self._config.ack_reactions and not gone:
            self._ack_reactions.show(room_id, route.event_id, stage)

    async def direct_session(self, person: str, *, topic: str = "") -> SessionKey:
        """The conversation with somebody; see `channels.base.SupportsDirectMessages`."""
        if self._directs is None or self._rooms is None:
            raise ChannelUnavailable("not connected to the homeserver yet", retry_after_s=1.0)
        room_id = await self._directs.room_with(person)
        return SessionKey(self.name, self._rooms.conversation_of(room_id))

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        """Return True if nobody else can read; see `channels.base.SupportsDirectMessages`."""
        if self._directs is None:
            raise ChannelUnavailable("not connected to the homeserver yet", retry_after_s=1.0)
        return await self._directs.alone_with(self._room_of(session), person)

    async def is_in(self, session: SessionKey) -> bool:
        """Return True if the bot is in a room now; see `channels.base.SupportsLeaving`."""
        if self._directs is None:
            raise ChannelUnavailable("not connected to the homeserver yet", retry_after_s=1.0)
        # While a room is being replaced, it is enough to be in the old one.
        rooms = dict.fromkeys((self._room_of(session), session.conversation))
        return any([await self._directs.is_in(room_id) for room_id in rooms])

    def allowed_here(self, session: SessionKey, person: str) -> bool | None:
        """Return the verdict of a room's own rule; see `channels.base.SupportsRoomPolicy`."""
        if not self._config.rooms:
            return None
        if self._directs is None or self._events is None:
            raise ChannelUnavailable("not connected to the homeserver yet", retry_after_s=1.0)
        return self._events.rules.allows(self._room_of(session), person)

    @property
    def last_contact_at(self) -> datetime | None:
        """Return when the homeserver last answered a ``/sync``."""
        return self._receiver.heard_at if self._receiver is not None else None

    async def aclose(self) -> None:
        """Close the connection; messages in flight end as uncertain."""
        homeserver, self._homeserver = self._homeserver, None
        self._sending = self._typing_receipts = None
        if self._crypto is not None:
            self._crypto.close()
            self._crypto = None
        if homeserver is not None:
            with anyio.move_on_after(5.0, shield=True):
                await homeserver.aclose()

    async def _meant(self, error: DeliveryFailed, placed: OutboundMessage) -> ChannelError:
        """Return the error to raise for a refusal, which is temporary while a room is being replaced."""
        if self._homeserver is None or self._rooms is None:
            return error
        now = self._clock.now()
        return await next_room_error(error, placed, self._homeserver, self._rooms, now) or error

    async def account_findings(self, *, running: bool) -> Sequence[AccountFinding]:
        """The encryption of the account; see `SupportsAccountFindings`."""
        if self._homeserver is None or self._crypto is None:
            return []
        found = await check_account(self._homeserver)
        return encryption_findings(found.as_dict(), running=running)

    def place_rules(self, conversation: str) -> PlaceRules:
        """The settings of a room; see `SupportsPlaceRules`."""
        return self._rules.place_rules(conversation)

    def room_name(self, conversation: str) -> str:
        """The name of a room; see `SupportsRoomNames`."""
        room = None if self._rooms is None else self._rooms.get(self._rooms.room_of(conversation))
        return "" if room is None else room.name

    async def people(self, conversation: str) -> Mapping[str, str]:
        """Return the joined people of a room and their names; see `SupportsRoomNames`."""
        room = None if self._rooms is None else self._rooms.get(self._rooms.room_of(conversation))
        if room is None or self._homeserver is None:
            raise ChannelUnavailable("not connected to the homeserver yet", retry_after_s=1.0)
        if len(room.joined | room.invited) != room.member_count:  # with lazy loading not all are known
            with link_errors():
                await check_room(self._homeserver, room)
        return {who: room.names.get(who, "") for who in sorted(room.joined) if who != self.account}

    def name_giver(self, conversation: str) -> str:
        """Return who set the room's name; see `SupportsRoomNames`."""
        room = None if self._rooms is None else self._rooms.get(self._rooms.room_of(conversation))
        return "" if room is None else room.named_by

    def member_names(self, conversation: str) -> Mapping[str, str]:
        """The members of a room; see `SupportsRoomNames`."""
        room = None if self._rooms is None else self._rooms.get(self._rooms.room_of(conversation))
        return {} if room is None else {each: room.names.get(each, "") for each in sorted(room.joined)}

    def _room_of(self, session: SessionKey) -> str:
        """Return the room in which a session continues; it differs after a room upgrade."""
        return session.conversation if self._rooms is None else self._rooms.room_of(session.conversation)

    async def _say_once(
        self, sender: EventSender, room_id: str, text: str, once: str, people: tuple[str, ...]
    ) -> None:
        """Say something of the channel itself to people in a room, once under the name ``once``; it rings."""
        session = SessionKey(self.name, room_id)
        message = notice(session, self.account, text, name=once, now=self._clock.now(), rings_for=people)
        await sender.deliver(message, uncertain=anyio.lowlevel.checkpoint)

    def _come_up(
        self, sending: EventSender, typing_receipts: TypingAndReceipts, directs: DirectRooms
    ) -> None:
        self._sending, self._typing_receipts, self._directs = sending, typing_receipts, directs

    async def _connected(self) -> tuple[Homeserver, MatrixLogin]:
        """Open what outlives a run: the connection, the login and the keys."""
        if self._homeserver is None:
            self._homeserver = await self.connect(self._config)
        if self._login is None:
            self._login = MatrixLogin(self._config, self._homeserver, self._state, self._clock)
        if self._ack_reactions is None:
            self._ack_reactions = AckReactions(self._homeserver)
        if self._crypto is None and self.machines is not None:
            self._crypto = open_crypto(
                self._config,
                self._homeserver,
                self._login,
                state=self._state,
                machines=self.machines,
                clock=self._clock,
            )
        return self._homeserver, self._login


async def _end_of(run: _Task, beside: Sequence[_Task]) -> Exception | None:
    """
    Wait until ``run`` ends, with the others beside it: they end with it.

    Its error is returned, because one that is raised in a group arrives wrapped in another.
    """
    async with anyio.create_task_group() as group:
        for each in beside:
            group.start_soon(each)
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - given back, see above
            return error
        finally:
            group.cancel_scope.cancel()
    return None
