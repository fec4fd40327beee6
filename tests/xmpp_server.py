"""A real XMPP server on loopback (Debian's prosody), and people on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from xml.etree.ElementTree import Element, SubElement

import anyio
import trustme
from slixmpp import ClientXMPP
from slixmpp.xmlstream.handler import Callback
from slixmpp.xmlstream.matcher import MatchXPath

from devservers.environment import cache_folder
from devservers.ports import lease_ports

PASSWORD = "open-sesame"
PROGRAM = shutil.which("prosody") or shutil.which("prosody", path="/usr/bin:/usr/sbin")
MISSING = "prosody is not installed (apt-get install prosody)"
PEOPLE = ("squid", "alice", "bob", "mallory")
ROOM, HIDING_ROOM = "team@rooms.localhost", "masks@rooms.localhost"
_CLIENT = "{jabber:client}"
_DIE_WITH_PARENT = (
    "import ctypes,os,signal,sys;ctypes.CDLL(None).prctl(1,signal.SIGKILL);os.execv(sys.argv[1],sys.argv[1:])"
)
_CONFIG = """
pidfile = "{folder}/prosody.pid"
data_path = "{folder}/data"
run_as_root = true
log = {{ {{ levels = {{ min = "info" }}, to = "file", filename = "{folder}/prosody.log" }} }}
network_backend = "epoll"
interfaces = {{ "127.0.0.1" }}
c2s_ports = {{ {c2s} }}
http_ports = {{ {http} }}
https_ports = {{}}
http_external_url = "http://localhost:{http}/"
modules_enabled = {{ "disco", "roster", "saslauth", "tls", "ping", "mam", "carbons", "smacks" }}
modules_disabled = {{ "s2s", "offline" }}
c2s_require_encryption = false
authentication = "internal_plain"
limits = {{}}
VirtualHost "localhost"
Component "rooms.localhost" "muc"
    modules_enabled = {{ "muc_mam" }}
    muc_log_by_default = true
Component "upload.localhost" "http_file_share"
    http_host = "localhost"
"""


class XmppServer:
    """
    One server; it can be stopped and started again on the same port.

    With ``authority`` it offers TLS: after a while on ``port``, and from the first byte on ``tls_port``.
    """

    def __init__(self, folder: Path, authority: trustme.CA | None = None, host: str = "localhost") -> None:
        self._leases = lease_ports(3, cache_folder() / "ports")
        self.port, self.http_port, self.tls_port = (lease.port for lease in self._leases)
        self.folder = folder / "prosody"
        accounts = self.folder / "data" / "localhost" / "accounts"
        accounts.mkdir(parents=True)
        for name in PEOPLE:
            (accounts / f"{name}.dat").write_text(f'return {{ ["password"] = "{PASSWORD}"; }};\n')
        self._config = self.folder / "prosody.cfg.lua"
        config = _CONFIG.format(folder=self.folder, c2s=self.port, http=self.http_port)
        if authority is not None:
            own = authority.issue_cert(host)
            chain = b"".join(each.bytes() for each in own.cert_chain_pems)
            for file, content in (("server.pem", chain), ("server.key", own.private_key_pem.bytes())):
                (self.folder / file).write_bytes(content)
            files = f'certificate = "{self.folder}/server.pem"; key = "{self.folder}/server.key"'
            config = f"ssl = {{ {files} }}\nc2s_direct_tls_ports = {{ {self.tls_port} }}\n{config}"
        self._config.write_text(config)
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                _DIE_WITH_PARENT,
                PROGRAM,
                "-F",
                "--config",
                str(self._config),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"]},
        )
        with anyio.fail_after(120):
            for port in (self.port, self.http_port):
                await self._until_open(port)

    async def _until_open(self, port: int) -> None:
        assert self._process is not None
        while True:
            try:
                async with await anyio.connect_tcp("127.0.0.1", port):
                    return
            except OSError:
                assert self._process.poll() is None, f"prosody ended: {self.log()}"
                await anyio.sleep(0.05)

    def log(self) -> str:
        path = self.folder / "prosody.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(120)

    def close(self) -> None:
        self.stop()
        for lease in self._leases:
            lease.release()

    def account(self, **more: Any) -> dict[str, Any]:
        """The settings of the bot's account."""
        return {
            "jid": "squid@localhost",
            "password": PASSWORD,
            "server": "127.0.0.1",
            "port": self.port,
            "tls": False,
            "nick": "squid",
            **more,
        }


class CuttingRelay:
    """Passes everything on; with ``cuts`` it ends the connection when the next message has gone to the server."""

    def __init__(self, port: int) -> None:
        self._port, self.cuts = port, False

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_server = await asyncio.open_connection("127.0.0.1", self._port)

        async def answer() -> None:
            while piece := await there.read(65536):
                writer.write(piece)
            writer.close()

        answering = asyncio.ensure_future(answer())
        with contextlib.suppress(OSError):
            while piece := await reader.read(65536):
                if self.cuts and b"<body" in piece:
                    self.cuts = False
                    answering.cancel()
                    to_server.write(piece)
                    break
                to_server.write(piece)
        for end in (to_server, writer):
            end.close()


class XmppPerson:
    """
    A person with a client.

    ``seen`` has the text of each message, with who has said it; ``stanzas`` has every message whole.
    """

    def __init__(self, server: XmppServer, name: str) -> None:
        self._server, self.name = server, name
        self.jid = f"{name}@localhost"
        self.seen: list[tuple[str, str]] = []
        self.stanzas: list[Element] = []
        self.online: set[str] = set()

    async def connect(self) -> Self:
        self._client = client = ClientXMPP(f"{self.jid}/phone", PASSWORD)
        client.enable_plaintext, client.enable_starttls, client.enable_direct_tls = True, False, False
        client.plugin["feature_mechanisms"].unencrypted_scram = True
        client.register_handler(Callback("all", MatchXPath(f"{_CLIENT}message"), self._take))
        client.register_handler(Callback("who", MatchXPath(f"{_CLIENT}presence"), self._meet))
        client.register_plugin("xep_0199", {"keepalive": False})
        started = asyncio.get_running_loop().create_future()
        client.add_event_handler("session_start", lambda _: started.done() or started.set_result(None))
        client.connect("127.0.0.1", self._server.port)
        with anyio.fail_after(60):
            await started
        client.send_presence()
        await self.catch_up()
        return self

    def _take(self, message: Any) -> None:
        self.stanzas.append(message.xml)
        body = message.xml.findtext(f"{_CLIENT}body")
        if body and message.xml.get("type") != "error":
            self.seen.append((message.xml.get("from"), body))

    def _meet(self, presence: Any) -> None:
        sender = presence.xml.get("from", "")
        if presence.xml.get("type") is None:
            self.online.add(sender)
        else:
            self.online.discard(sender)

    async def join(self, room: str, nick: str = "", *, shows_addresses: bool | None = None) -> None:
        """Join a room; with ``shows_addresses`` make it."""
        me = f"{room}/{nick or self.name}"
        presence = self._client.make_presence(pto=me)
        muc = Element("{http://jabber.org/protocol/muc}x")
        SubElement(muc, "{http://jabber.org/protocol/muc}history", {"maxstanzas": "0"})
        presence.append(muc)
        presence.send()
        await self.until(lambda: me in self.online)
        if shows_addresses is not None:
            await self.configure(room, shows_addresses=shows_addresses)

    async def leave(self, room: str, nick: str = "") -> None:
        self._client.make_presence(pto=f"{room}/{nick or self.name}", ptype="unavailable").send()
        await self.until(lambda: f"{room}/{nick or self.name}" not in self.online)

    async def configure(self, room: str, *, shows_addresses: bool) -> None:
        query = Element("{http://jabber.org/protocol/muc#owner}query")
        form = SubElement(query, "{jabber:x:data}x", {"type": "submit"})
        given = {
            "FORM_TYPE": "http://jabber.org/protocol/muc#roomconfig",
            "muc#roomconfig_whois": "anyone" if shows_addresses else "moderators",
            "muc#roomconfig_persistentroom": "1",
        }
        for name, value in given.items():
            SubElement(
                SubElement(form, "{jabber:x:data}field", {"var": name}), "{jabber:x:data}value"
            ).text = value
        with anyio.fail_after(60):
            await self._ask("set", room, query)

    async def say(
        self, to: str, text: str, *extra: Element, key: str = "", room: bool = False, kind: str = "chat"
    ) -> str:
        """Say something, with more elements; returns the id of the stanza."""
        message = self._client.make_message(mto=to, mbody=text or None, mtype="groupchat" if room else kind)
        message["id"] = key or self._client.new_id()
        for element in extra:
            message.append(element)
        message.send()
        await self.catch_up()
        return str(message["id"])

    async def upload(self, name: str, content: bytes) -> str:
        """Store a file at the server, as a client does; returns its address."""
        import aiohttp

        request = Element(
            "{urn:xmpp:http:upload:0}request",
            {"filename": name, "size": str(len(content)), "content-type": "text/plain"},
        )
        with anyio.fail_after(60):
            answer = await self._ask("get", "upload.localhost", request)
            slot = answer.xml.find("{urn:xmpp:http:upload:0}slot")
            put, get = (slot.find(f"{{urn:xmpp:http:upload:0}}{each}") for each in ("put", "get"))
            headers = {each.get("name"): each.text for each in put}
            async with (
                aiohttp.ClientSession() as http,
                http.put(
                    put.get("url"), data=content, headers={**headers, "Content-Type": "text/plain"}
                ) as done,
            ):
                assert done.status in (200, 201), await done.text()
        return str(get.get("url"))

    async def until(self, true: Callable[[], object], *, within_s: float = 120) -> None:
        with anyio.fail_after(within_s):
            while not true():
                await self.catch_up()
                await anyio.sleep(0.02)

    async def until_online(self, jid: str) -> None:
        """Wait until a client with this full address has a session."""
        with anyio.fail_after(60):
            while True:
                try:
                    await self._ask("get", jid, Element("{urn:xmpp:ping}ping"))
                    return
                except Exception:
                    await anyio.sleep(0.05)

    def _ask(self, kind: str, whom: str, what: Element) -> Any:
        iq = self._client.make_iq(id=self._client.new_id(), ito=whom, itype=kind)
        iq.append(what)
        return iq.send()

    async def catch_up(self) -> None:
        """Read all that the server has for them by now."""
        with anyio.fail_after(60):
            await self._ask("get", "localhost", Element("{urn:xmpp:ping}ping"))

    async def close(self) -> None:
        self._client.cancel_connection_attempt()
        self._client.abort()
        for task in (self._client._run_out_filters, self._client._current_connection_attempt):
            if task is not None:
                task.cancel()
        await anyio.sleep(0)

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
