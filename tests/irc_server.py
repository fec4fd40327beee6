"""A real IRC server on loopback (Debian's ngircd), and people on it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Self

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from devservers.environment import cache_folder
from devservers.ports import lease_ports

PASSWORD = "open-sesame"
PROGRAM = shutil.which("ngircd") or shutil.which("ngircd", path="/usr/sbin")
MISSING = "ngircd is not installed (apt-get install ngircd)"


class IrcServer:
    """One server; it can be stopped and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        [self._lease] = lease_ports(1, cache_folder() / "ports")
        self.port = self._lease.port
        self._config = folder / "ngircd.conf"
        self._config.write_text(
            f"[Global]\nName = irc.test\nInfo = a test\nListen = 127.0.0.1\nPorts = {self.port}\n"
            f"Password = {PASSWORD}\nMotdPhrase = hello\n"
            "[Limits]\nMaxConnectionsIP = 0\nMaxPenaltyTime = 0\n[Options]\nDNS = no\nIdent = no\nPAM = no\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [PROGRAM, "-n", "-f", str(self._config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with anyio.fail_after(120):
            while True:
                try:
                    async with await anyio.connect_tcp("127.0.0.1", self.port):
                        return
                except OSError:
                    assert self._process.poll() is None, "ngircd ended"
                    await anyio.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(120)

    def close(self) -> None:
        self.stop()
        self._lease.release()


class IrcPerson:
    """A person with a client; ``seen`` has what others have said to them, or in their rooms."""

    def __init__(self, server: IrcServer, nick: str) -> None:
        self._server, self.nick = server, nick
        self.seen: list[tuple[str, str]] = []
        self._count = 0

    async def connect(self, *rooms: str) -> Self:
        self._stream: SocketStream = await anyio.connect_tcp("127.0.0.1", self._server.port)
        self._lines = BufferedByteReceiveStream(self._stream)
        await self._send(f"PASS {PASSWORD}", f"NICK {self.nick}", f"USER {self.nick} 0 * :a person")
        await self._until(" 001 ")
        await self._send(*(f"JOIN {room}" for room in rooms))
        await self.catch_up()
        return self

    async def say(self, to: str, text: str) -> None:
        await self._send(f"PRIVMSG {to} :{text}")
        await self.catch_up()

    async def until_online(self, nick: str) -> None:
        with anyio.fail_after(60):
            while True:
                await self._send(f"ISON {nick}")
                if (await self._until(" 303 ")).rpartition(":")[2].strip():
                    return
                await anyio.sleep(0.05)

    async def catch_up(self) -> None:
        """Read all that the server has for them by now."""
        self._count += 1
        await self._send(f"PING :now{self._count}")
        await self._until(f"now{self._count}")

    async def close(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, *lines: str) -> None:
        await self._stream.send("".join(f"{line}\r\n" for line in lines).encode())

    async def _until(self, wanted: str) -> str:
        with anyio.fail_after(60):
            while True:
                line = (await self._lines.receive_until(b"\n", 16_384)).decode().rstrip("\r")
                if line.startswith("PING "):
                    await self._send(line.replace("PING", "PONG", 1))
                elif " PRIVMSG " in line:
                    prefix, _, _, text = line.split(" ", 3)
                    self.seen.append((prefix[1:].partition("!")[0], text.removeprefix(":")))
                elif wanted in line:
                    return line
