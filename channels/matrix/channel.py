"""
The Matrix channel: it puts the parts together and owns their life.

One connection lives from the first `MatrixChannel.run` to `MatrixChannel.aclose`; a run that ends and starts
again uses the same. What is between two runs, such as the answers that are sent while the daemon drains, can
therefore still be delivered. nio is imported in a worker thread, at the first run.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog

from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from channels.base import (
    Capabilities,
    ChannelMisconfigured,
    ChannelUnavailable,
    Clock,
    Inbox,
    LinkState,
    Receipt,
    Redelivery,
)
from channels.matrix.config import MatrixConfig
from channels.matrix.crypto import Crypto, pickle_key
from channels.matrix.hints import Hints
from channels.matrix.inbound import Me
from channels.matrix.invites import Invites
from channels.matrix.lean import load_nio
from channels.matrix.reading import Reading
from channels.matrix.rooms import JsonObject, Rooms, text_of
from channels.matrix.sending import Sending
from channels.matrix.session import Login
from channels.matrix.sync import OPEN_INVITES, Receiver
from channels.matrix.verification import SendInRoom, Verifications
from channels.matrix.wire import CLIENT, Homeserver, LinkBroken, part

if TYPE_CHECKING:
    from channels.matrix.private_olm import Machine

__all__ = ["MatrixChannel"]

MAX_TEXT_BYTES = 16_000
"""An event holds 65,536 bytes; the text is in it twice, and its HTML can be much longer."""

_PROFILE_LIMIT_S = 5.0
_CLOSE_LIMIT_S = 5.0
_log = structlog.get_logger(__name__)
Connect = Callable[[MatrixConfig], Awaitable[Homeserver]]
Machines = Callable[[Path, str, str], Callable[[str], "Machine"]]


class MatrixChannel:
    """
    A channel to one Matrix account.

    Args:
        name: The key under ``channels:``.
        config: The account.
        state_dir: A folder of the channel's own; the login is kept there.
        clock: Where time comes from.
        may_invite: Whose invitations are followed; by default those whom ``allow_from`` names.
        connect: Makes the connection; by default one through nio.
        machines: Opens what holds the keys, given folder, user and the key of the stores; by default nio's.
            With a ``connect`` of one's own there is none unless it is given, and no encryption.
    """

    def __init__(
        self,
        name: str,
        config: MatrixConfig,
        *,
        state_dir: Path,
        clock: Clock,
        may_invite: Callable[[str], bool] | None = None,
        connect: Connect | None = None,
        machines: Machines | None = None,
    ) -> None:
        self.name = name
        self.account = config.user_id
        self.capabilities = Capabilities(
            redelivery=Redelivery.SAME_KEY, typing=config.display.typing, max_text_bytes=MAX_TEXT_BYTES
        )
        self._config = config
        self._state_dir = state_dir
        self._clock = clock
        self._may_invite = may_invite or config.allows
        self._connect = connect or _connect_by_nio
        self._machines = machines or (_nio_machines if connect is None else None)
        self._homeserver: Homeserver | None = None
        self._hints: Hints | None = None
        self._sending: Sending | None = None
        self._crypto: Crypto | None = None
        self._login: Login | None = None

    async def run(self, inbox: Inbox) -> None:
        """Receive until cancelled; see `Channel.run`."""
        inbox.report(LinkState.CONNECTING)
        if self._homeserver is None:
            self._homeserver = await self._connect(self._config)
        homeserver = self._homeserver
        if self._login is None:
            self._login = Login(self._config, homeserver, self._state_dir, self._clock)
        login = self._login
        await login.enter()
        inbox.report(LinkState.CATCHING_UP)
        rooms = Rooms(self.account)
        hints = Hints(homeserver, self.account)
        invites = Invites(homeserver, rooms, self._clock, user_id=self.account, may_invite=self._may_invite)
        crypto = self._crypto = self._crypto or self._open_crypto(homeserver, login)

        async def send_in_room(room_id: str, kind: str, content: JsonObject) -> None:
            await sending.send_event(room_id, kind, content)

        reading = self._open_reading(homeserver, login, crypto, send_in_room)
        receiver = Receiver(
            homeserver,
            login,
            me=await self._introduce(homeserver),
            rooms=rooms,
            invites=invites,
            hints=hints,
            inbox=inbox,
            clock=self._clock,
            on_up=lambda: self._come_up(sending, hints),
            reading=reading,
            read_receipts=self._config.display.read_receipts,
        )
        sending = Sending(
            self._config,
            homeserver,
            login,
            rooms,
            is_current=lambda: receiver.is_current,
            now=self._clock.now,
            crypto=crypto,
        )

        async def save(positions: Mapping[str, str]) -> None:
            await inbox.accept([], positions)

        async def save_invites(text: str) -> None:
            await save({OPEN_INVITES: text})

        async def tell(room_id: str, text: str, once: str) -> None:
            await sending.deliver(self._notice(room_id, text, once), uncertain=anyio.lowlevel.checkpoint)

        failed: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(hints.run)
            group.start_soon(invites.run, save_invites)
            if reading is not None:
                group.start_soon(reading.run, tell, save)
            try:
                await receiver.run()
            except Exception as error:  # noqa: BLE001 - raised below, once the group has ended
                # Kept outside of the group: it must not arrive wrapped in one.
                failed = error
            group.cancel_scope.cancel()
        self._hints = None
        if failed is not None:
            raise failed

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Send one message; see `Channel.deliver`."""
        if self._sending is None:
            raise ChannelUnavailable("not connected to the homeserver yet", retry_after_s=1.0)
        return await self._sending.deliver(message, uncertain=uncertain)

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Never needed: a homeserver recognises a repetition by its transaction id."""
        raise ChannelUnavailable("a Matrix message is repeated, not looked for")

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Show or hide that something is being written; returns at once."""
        if self._hints is not None and self._config.display.typing:
            self._hints.typing(session.conversation, on=on)

    async def preview(self, session: SessionKey, text: str) -> None:
        """Unfinished answers are not shown."""

    async def aclose(self) -> None:
        """Close the connection; what is still being sent ends as uncertain."""
        homeserver, self._homeserver = self._homeserver, None
        self._sending = self._hints = None
        if self._crypto is not None:
            self._crypto.close()
            self._crypto = None
        if homeserver is not None:
            with anyio.move_on_after(_CLOSE_LIMIT_S, shield=True):
                await homeserver.aclose()

    def _come_up(self, sending: Sending, hints: Hints) -> None:
        self._sending, self._hints = sending, hints

    def _open_crypto(self, homeserver: Homeserver, login: Login) -> Crypto | None:
        if self._machines is None:
            return None
        try:
            key = pickle_key(self._state_dir)
        except OSError as error:
            raise ChannelUnavailable(
                f"the key of the crypto store cannot be read or made: {error}"
            ) from error
        opened = self._machines(self._state_dir, self.account, key)
        return Crypto(homeserver, login, self._state_dir, opened, self._clock)

    def _open_reading(
        self, homeserver: Homeserver, login: Login, crypto: Crypto | None, send_in_room: SendInRoom
    ) -> Reading | None:
        if crypto is None:
            return None
        verifications = Verifications(
            crypto,
            self._clock,
            user_id=self.account,
            allows=self._may_invite,
            send_in_room=send_in_room,
        )
        return Reading(
            homeserver,
            login,
            crypto,
            verifications,
            self._clock,
            user_id=self.account,
            allows=self._may_invite,
        )

    def _notice(self, room_id: str, text: str, once: str) -> OutboundMessage:
        return OutboundMessage(
            id=once,
            channel=self.name,
            account=self.account,
            session=SessionKey(self.name, room_id),
            kind=OutboundKind.NOTICE,
            text=text,
            created_at=self._clock.now(),
        )

    async def _introduce(self, homeserver: Homeserver) -> Me:
        """Learn the name that people may call us by; without it their mentions still count."""
        name = ""
        path = f"{CLIENT}/profile/{part(self.account)}/displayname"
        try:
            answer = await homeserver.request("GET", path, timeout_s=_PROFILE_LIMIT_S)
            name = text_of(answer.body, "displayname") if answer.good else ""
        except LinkBroken as error:
            _log.info("matrix.name_unknown", error=str(error))
        return Me(
            channel=self.name,
            user_id=self.account,
            display_name=name,
            group_policy=self._config.group_policy,
            group_allow_from=self._config.group_allow_from,
            mention_by_name=self._config.mention_by_name,
        )


def _nio_machines(folder: Path, user_id: str, key: str) -> Callable[[str], Machine]:
    from channels.matrix.private_olm import opener  # noqa: PLC0415 - after `load_nio`

    return opener(folder, user_id, key)


async def _connect_by_nio(config: MatrixConfig) -> Homeserver:
    def connect() -> Homeserver:
        # nio takes half a second to import, which must not stop everything else.
        load_nio()
        from channels.matrix.private import NioHomeserver  # noqa: PLC0415 - after `load_nio`

        return NioHomeserver(config.homeserver, config.user_id, tls_ca_file=config.tls_ca_file)

    try:
        return await anyio.to_thread.run_sync(connect)
    except (OSError, ssl.SSLError) as error:
        raise ChannelMisconfigured(f"tls_ca_file {config.tls_ca_file} cannot be used: {error}") from error
