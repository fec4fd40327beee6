"""One nick on one IRC network (RFC 2812; account-tag of IRCv3)."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping

import anyio
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from squidbot_api.channel import (
    Audience,
    Capabilities,
    ChannelAuthFailed,
    ChannelServices,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
    InboundMessage,
    Inbox,
    LinkState,
    OutboundMessage,
    Receipt,
    Redelivery,
    Sender,
    SessionKey,
)
from squidbot_irc import IrcAddresses, IrcConfig

ANSWER_S = 30.0
QUIET_S = 120.0
GONE, REFUSED = "401", "404"


class IrcChannel:
    """A nick. Nobody can look whether a message has arrived, so in doubt a person decides (REVIEW)."""

    capabilities = Capabilities(redelivery=Redelivery.REVIEW, max_text_bytes=400)

    def __init__(self, config: IrcConfig, services: ChannelServices) -> None:
        self.name, self.account = services.name, config.nick
        self._config, self._now = config, services.clock.now
        self._addresses = IrcAddresses()
        self._stream: ByteStream | None = None
        self._answers: dict[str, list[str]] = {}  # what came since a PING of ours, by its token
        self._answered = anyio.Condition()
        self._sending = anyio.Lock()

    async def run(self, inbox: Inbox) -> None:
        """Receive until cancelled. Everything that goes wrong leaves as a `ChannelError`."""
        inbox.report(LinkState.CONNECTING)
        try:
            with anyio.fail_after(ANSWER_S):
                stream = await _connected(self._config)
            async with stream:
                lines = BufferedByteReceiveStream(stream)
                await self._log_in(stream, lines)
                self._stream = stream
                inbox.report(LinkState.UP)
                while True:
                    await self._take(await self._line(lines), inbox)
        except (OSError, TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            inbox.report(LinkState.DOWN, "the connection is lost")
            raise ChannelUnavailable(f"the connection is lost: {error or type(error).__name__}") from error
        except ChannelAuthFailed as error:
            inbox.report(LinkState.FAILED, str(error))
            raise
        finally:
            self._stream = None
            async with self._answered:
                self._answered.notify_all()  # who waits for an answer gets none any more

    async def _log_in(self, stream: ByteStream, lines: BufferedByteReceiveStream) -> None:
        nick, password = self._config.nick, self._config.password
        if password is not None:
            await _send(stream, f"PASS {password.get_secret_value()}")
        await _send(stream, "CAP REQ :account-tag", "CAP END", f"NICK {nick}", f"USER {nick} 0 * :squidbot")
        with anyio.fail_after(ANSWER_S):
            while True:
                line = await _read(lines)
                _, _, command, words = _parts(line)
                if command == "PING":
                    await _send(stream, f"PONG :{words[-1]}")
                elif command in ("464", "465") or (command == "ERROR" and "assword" in line):
                    raise ChannelAuthFailed(f"the server refuses the login: {words[-1]}")
                elif command in ("432", "ERROR"):
                    raise ChannelUnavailable(f"the server refuses the nick {nick}: {words[-1]}")
                elif command == "433":  # perhaps our own last connection, which the server will miss soon
                    await anyio.sleep(1)
                    await _send(stream, f"NICK {nick}")
                elif command == "001":
                    break
        for room in self._config.rooms:
            await _send(stream, f"JOIN {room}")

    async def _line(self, lines: BufferedByteReceiveStream) -> str:
        """The next line; a server that says nothing for long is asked whether it is there."""
        with anyio.move_on_after(QUIET_S):
            return await _read(lines)
        assert self._stream is not None
        await _send(self._stream, "PING :alive")
        with anyio.fail_after(ANSWER_S):
            return await _read(lines)

    async def _take(self, line: str, inbox: Inbox) -> None:
        tags, nick, command, words = _parts(line)
        if command == "PING" and self._stream is not None:
            await _send(self._stream, f"PONG :{words[-1]}")
        elif command == "PRIVMSG" and len(words) == 2 and nick:
            await inbox.accept([self._message(tags, nick, *words)])
        elif command in ("PONG", GONE, REFUSED):
            async with self._answered:
                for heard in self._answers.values():
                    heard += [command, words[-1]]
                self._answered.notify_all()

    def _message(self, tags: Mapping[str, str], nick: str, to: str, text: str) -> InboundMessage:
        in_room = self._addresses.is_room(to)
        account = tags.get("account") or (nick if self._config.trust_nicks else "")
        called, _, rest = text.partition(": ")
        is_called = called.lower() == self.account.lower()
        return InboundMessage(
            channel=self.name,
            account=self.account,
            native_id=uuid.uuid4().hex,  # the server never says anything twice
            session=SessionKey(self.name, to.lower() if in_room else nick.lower()),
            sender=Sender(address=(account or nick).lower(), name=nick, verified=bool(account)),
            text=rest if is_called else text,
            received_at=self._now(),
            audience=Audience.GROUP if in_room else Audience.DIRECT,
            addressed=is_called or not in_room,
        )

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Say it line by line. The server answers a PING after it has dealt with what came before."""
        to, key = message.session.conversation, uuid.uuid4().hex
        async with self._sending:
            if self._stream is None:
                raise ChannelUnavailable("there is no connection")
            await uncertain()  # from here on the server may have it
            heard = self._answers[key] = []
            try:
                said = [line for line in message.text.replace("\0", "").splitlines() if line.strip()]
                await _send(self._stream, *(f"PRIVMSG {to} :{line}" for line in said), f"PING :{key}")
                with anyio.fail_after(ANSWER_S):
                    async with self._answered:
                        while key not in heard and self._stream is not None:
                            await self._answered.wait()
            except (OSError, TimeoutError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise DeliveryUncertain(f"the server has not answered: {error}") from error
            finally:
                del self._answers[key]
        if key not in heard:
            raise DeliveryUncertain("the connection was lost before the server's answer")
        if GONE in heard:
            raise ChannelUnavailable(f"{to} is not there now")  # said again later
        if REFUSED in heard:
            raise DeliveryFailed(f"{to} takes no messages from the bot")
        return Receipt(provider_id=key)

    async def join(self, room: str) -> None:
        """Join a room, if the server lets the bot in."""
        if self._stream is None:
            raise ChannelUnavailable("there is no connection")
        await _send(self._stream, f"JOIN {room}")

    async def direct_session(self, person: str, *, topic: str = "") -> SessionKey:
        """The conversation with a person alone: the owner can be written to."""
        return SessionKey(self.name, person.lower())

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        """A private message goes to one nick."""
        return session.conversation == person.lower()

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Never asked, because of `Redelivery.REVIEW`."""
        return None

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """IRC cannot show that."""

    async def preview(self, session: SessionKey, text: str) -> None:
        """IRC cannot show that."""

    async def aclose(self) -> None:
        """The connection ends with `run`."""


def _parts(line: str) -> tuple[dict[str, str], str, str, list[str]]:
    """The tags, the nick, the command and the words of a line."""
    tags: dict[str, str] = {}
    if line.startswith("@"):
        given, _, line = line[1:].partition(" ")
        tags = {name: value for name, _, value in (one.partition("=") for one in given.split(";"))}
    prefix = ""
    if line.startswith(":"):
        prefix, _, line = line[1:].partition(" ")
    start, colon, last = line.partition(" :")
    command, *words = start.split() or [""]
    return tags, prefix.partition("!")[0], command.upper(), [*words, last] if colon else words or [""]


async def _connected(config: IrcConfig) -> ByteStream:
    if config.tls:
        return await anyio.connect_tcp(config.server, config.port, tls=True, tls_standard_compatible=False)
    return await anyio.connect_tcp(config.server, config.port)


async def _read(lines: BufferedByteReceiveStream) -> str:
    try:
        line = await lines.receive_until(b"\n", 16_384)
    except (anyio.DelimiterNotFound, anyio.IncompleteRead) as error:
        raise anyio.EndOfStream from error
    return line.decode("utf-8", "replace").rstrip("\r")


async def _send(stream: ByteStream, *lines: str) -> None:
    await stream.send("".join(f"{line}\r\n" for line in lines).encode("utf-8", "replace"))
