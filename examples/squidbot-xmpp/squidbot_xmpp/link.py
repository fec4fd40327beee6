"""
A connection to an XMPP server: slixmpp's stream, and on it what the channel needs of the server.

What arrives of people is not taken from here. It only says in which archive there is something new, so that
everything is read in one place and in one order, whether the bot was connected when it was said or not. What
is in no archive (its sender wanted it so) is kept in `unarchived`; what does not fit there goes back.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from xml.etree.ElementTree import Element, SubElement

import anyio
import anyio.lowlevel
from slixmpp import JID, ClientXMPP, Iq
from slixmpp.exceptions import IqError, IqTimeout, XMPPError
from slixmpp.xmlstream.handler import Callback
from slixmpp.xmlstream.matcher import MatchXPath

from squidbot_api.channel import ChannelAuthFailed, ChannelMisconfigured, ChannelUnavailable
from squidbot_xmpp import XmppConfig
from squidbot_xmpp import stanzas as xml

ANSWER_S = 30.0
PAGE = 50
RESOURCE = "squidbot"  # always the same, so that the server ends what is left of the last connection
_UNARCHIVED = 100
_ROOM_CHANGED = {"172", "173", "174", "104"}
_DISCO_INFO, _DISCO_ITEMS = (f"{{http://jabber.org/protocol/disco#{each}}}" for each in ("info", "items"))
_UPLOAD = "{urn:xmpp:http:upload:0}"
logging.getLogger("slixmpp").setLevel(logging.WARNING)  # it would write down the login


def _no_proof(domain: str, error: ssl.SSLError) -> str:
    """The sentence about a server that has not proved who it is."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"the server of {domain} offers no encryption that both sides know, so no password was sent"
    return (
        f"the certificate of the server is not trusted for {domain}, so no password was sent "
        f"({error.verify_message.rstrip('.')}); if its authority is your own, name its file in ca_file"
    )


def _no_connection(domain: str, failures: Sequence[Any]) -> str:
    """The sentence about tries to connect that have failed; one without proof says more than the others."""
    unproven = next((each for each in failures if isinstance(each, ssl.SSLError)), None)
    return _no_proof(domain, unproven) if unproven else f"no connection: {failures[-1] if failures else ''}"


class Refused(Exception):
    """The server refuses a request. ``condition`` is its reason, ``temporary``: it may not do so later."""

    def __init__(self, condition: str, *, temporary: bool = False) -> None:
        self.condition, self.temporary = condition, temporary
        super().__init__(condition)


@dataclass(slots=True)
class Page:
    """Messages of an archive, the oldest first; ``whole``: there are no more in that direction."""

    entries: list[xml.Entry] = field(default_factory=list)
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a file is put, and where others find it."""

    put: str
    get: str
    headers: dict[str, str]


class Link:
    """One connection; ``lost`` is done, with the reason, when it has ended."""

    def __init__(self, config: XmppConfig, unarchived: deque[tuple[str, Element]]) -> None:
        loop = asyncio.get_running_loop()
        self._config = config
        self.lost: asyncio.Future[str] = loop.create_future()
        self.is_replaced = False
        """Another program has logged in to the account under the same name."""
        self.unarchived = unarchived
        self.joined: dict[str, bool] = {}
        """The rooms in which the bot is, and whether they show everybody's address."""
        self.changed: set[str] = set()
        """The rooms whose rules have changed since their archive was read."""
        self.subscriptions: deque[str] = deque(maxlen=_UNARCHIVED)
        self._news = {place: asyncio.Event() for place in (config.jid, *config.rooms)}
        self._pages: dict[str, tuple[str, Page]] = {}
        self._sent: dict[tuple[str, str], asyncio.Future[Element | None]] = {}
        self._joining: dict[str, asyncio.Future[Element]] = {}
        self._upload_service: str | None = None
        self._client = client = ClientXMPP(f"{config.jid}/{RESOURCE}", config.password.get_secret_value())
        client.auto_authorize = None
        client.enable_plaintext = not config.tls
        client.enable_direct_tls = config.tls and (not config.server or config.port == 5223)
        client.enable_starttls = config.tls and (not config.server or config.port != 5223)
        client.plugin["feature_mechanisms"].unencrypted_scram = not config.tls
        client.plugin["feature_mechanisms"].unencrypted_plain = False
        if config.ca_file is not None:
            client.ca_certs = config.ca_file
        for kind, take in (("message", self._take_message), ("presence", self._take_presence)):
            client.register_handler(Callback(f"squidbot {kind}", MatchXPath(xml.CLIENT + kind), take))
        client.register_plugin("xep_0030")
        client.register_plugin("xep_0199", {"keepalive": False})
        for feature in ("urn:xmpp:receipts", "urn:xmpp:message-correct:0", "urn:xmpp:chat-markers:0"):
            client.plugin["xep_0030"].add_feature(feature)

    # ── the connection ──

    async def open(self) -> None:
        """Log in. Raises `ChannelAuthFailed`, `ChannelMisconfigured` or `ChannelUnavailable`."""
        config = self._config
        if config.ca_file is not None and not config.ca_file.is_file():
            raise ChannelMisconfigured(f"ca_file {config.ca_file} is not there")
        started: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def end(result: Exception | None) -> None:
            if not started.done():
                started.set_result(result)

        def refuse(failure: Any) -> None:
            reason = str(failure["condition"] or "not-authorized")
            kind = ChannelUnavailable if reason == "temporary-auth-failure" else ChannelAuthFailed
            end(kind(f"the server refuses the login: {reason}"))

        on = self._client.add_event_handler
        on("session_start", lambda _: end(None))
        on("failed_auth", refuse)
        on("failed_all_auth", lambda _: end(ChannelAuthFailed("the server refuses the login")))
        on("no_auth", lambda _: end(ChannelAuthFailed("the server has no safe way to log in")))
        on(
            "ssl_invalid_chain",
            lambda error: end(ChannelUnavailable(_no_proof(config.domain, error))),
        )
        on("stream_error", lambda error: self._take_end(str(error["condition"])))
        on("disconnected", lambda reason: self.end(str(reason or "the connection is lost")))
        failures = list[Any]()
        on("connection_failed", failures.append)
        # It would begin anew: each place that the SRV records name was tried.
        on("reconnect_delay", lambda _: end(ChannelUnavailable(_no_connection(config.domain, failures))))
        if config.server:
            self._client.connect(config.server, config.port)
        else:
            self._client.connect()
        await self._wait(started)
        if started.done() and (error := started.result()) is not None:
            raise error
        if not started.done():
            reason = self.lost.result() if self.lost.done() else f"no login within {ANSWER_S:g} s"
            raise ChannelUnavailable(reason)
        await self._check_archive()
        self._client.send_presence()

    async def _check_archive(self) -> None:
        """Everything is to be archived. Raises `ChannelMisconfigured`: the server cannot."""
        account = self._config.jid
        if "urn:xmpp:mam:2" not in await self._features(account):
            raise ChannelMisconfigured(f"{self._config.domain} keeps no message archive (XEP-0313)")
        prefs = Element(f"{xml.MAM}prefs", {"default": "always"})
        SubElement(prefs, f"{xml.MAM}always")
        SubElement(prefs, f"{xml.MAM}never")
        with suppress(Refused):  # then its rules are the server's
            await self._ask("set", self._config.jid, prefs)

    def _take_end(self, condition: str) -> None:
        self.is_replaced = condition == "conflict"
        self.end(f"the server ends the connection: {condition}")

    def end(self, reason: str) -> None:
        """The connection is not used any more, for this reason."""
        if not self.lost.done():
            self.lost.set_result(reason)

    async def close(self) -> None:
        """Let go of everything."""
        self.end("closed")
        client = self._client
        client.cancel_connection_attempt()
        client.abort()
        for name in ("_run_out_filters", "_current_connection_attempt"):
            if (task := getattr(client, name, None)) is not None:
                task.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()  # the transport closes in the next round

    def _check(self) -> None:
        if self.lost.done():
            raise ChannelUnavailable(self.lost.result())

    async def _wait(self, wanted: asyncio.Future[Any], at_most_s: float = ANSWER_S) -> None:
        """Wait for something, or for the end of the connection or the time."""
        both: set[asyncio.Future[Any]] = {wanted, self.lost}
        await asyncio.wait(both, timeout=at_most_s, return_when=asyncio.FIRST_COMPLETED)

    async def _ask(self, kind: Literal["get", "set"], whom: str, what: Element) -> Element:
        """Ask and return the answer. Raises `Refused` or `ChannelUnavailable`."""
        self._check()
        iq = self._client.make_iq(id=self._client.new_id(), ito=JID(whom), itype=kind)
        iq.append(what)
        answer: asyncio.Future[Iq] = iq.send(timeout=ANSWER_S)  # type: ignore[no-untyped-call]
        try:
            await self._wait(answer, 2 * ANSWER_S)
            if not answer.done():
                self._check()
            return answer.result().xml
        except IqError as error:
            condition = str(error.condition)
            temporary = error.etype == "wait" or condition in ("remote-server-timeout", "resource-constraint")
            raise Refused(condition, temporary=temporary) from error
        except (IqTimeout, XMPPError) as error:
            if xml.bare(whom) not in (self._config.jid, self._config.domain):
                raise Refused("its server does not answer", temporary=True) from error
            raise ChannelUnavailable("the server does not answer") from error
        finally:
            answer.cancel()

    async def ping(self) -> None:
        """Return when the server has dealt with all that was sent before. Raises `ChannelUnavailable`."""
        with suppress(Refused):  # an answer as well
            await self._ask("get", self._config.domain, Element("{urn:xmpp:ping}ping"))

    async def _features(self, whom: str) -> set[str]:
        answer = await self._ask("get", whom, Element(f"{_DISCO_INFO}query"))
        return {each.get("var", "") for each in answer.iterfind(f"{_DISCO_INFO}query/{_DISCO_INFO}feature")}

    # ── archives ──

    async def wait_for_news(self, place: str, at_most_s: float) -> None:
        """
        Wait until there may be something new in an archive, but not for ever.

        Raises:
            ChannelUnavailable: The connection is lost.
        """
        waiting = asyncio.ensure_future(self._news[place].wait())
        try:
            await self._wait(waiting, at_most_s)
        finally:
            waiting.cancel()
        self._check()
        self._news[place].clear()

    async def page(
        self,
        place: str,
        *,
        peer: str = "",
        after: str = "",
        before: str | None = None,
        start: str = "",
        most: int = PAGE,
    ) -> Page:
        """A page of the account's archive or a room's. Raises `Refused` or `ChannelUnavailable`."""
        query_id, page = uuid.uuid4().hex, Page()
        query = xml.mam_query(query_id, peer=peer, after=after, before=before, start=start, most=most)
        self._pages[query_id] = (place, page)
        try:
            answer = await self._ask("set", place, query)
        finally:
            del self._pages[query_id]
        fin = answer.find(f"{xml.MAM}fin")
        page.whole = fin is not None and fin.get("complete") == "true"
        return page

    # ── rooms ──

    async def join(self, room: str, nick: str) -> None:
        """Join a room that keeps an archive. Raises `Refused` or `ChannelUnavailable`."""
        self._check()
        me = f"{room}/{nick}"
        answer = self._joining[me] = asyncio.get_running_loop().create_future()
        presence = self._client.make_presence(pto=JID(me))
        muc = Element(f"{xml.MUC}x")
        SubElement(muc, f"{xml.MUC}history", {"maxstanzas": "0"})
        presence.append(muc)
        presence.send()
        try:
            await self._wait(answer)
            self._check()
            if not answer.done():
                raise Refused("the room does not answer", temporary=True)
            said = answer.result()
        finally:
            answer.cancel()
            del self._joining[me]
        if said.get("type") == "error":
            raise Refused(xml.error_text(said))
        if "201" in xml.status_codes(said):
            self._leave(me)
            raise Refused("there is no such room")
        await self.look_at(room)
        if room not in self.joined:
            self._leave(me)
            raise Refused("it keeps no archive (XEP-0313)")

    def _leave(self, me: str) -> None:
        self._client.make_presence(pto=JID(me), ptype="unavailable").send()

    async def look_at(self, room: str) -> None:
        """Find out what a room is like. Raises `Refused` or `ChannelUnavailable`."""
        features = await self._features(room)
        self.joined.pop(room, None)
        if "urn:xmpp:mam:2" in features:
            self.joined[room] = "muc_nonanonymous" in features

    def join_again(self, room: str) -> None:
        """What is known of a room is not true any more."""
        self.joined.pop(room, None)
        self._wake(room)

    # ── sending ──

    async def send_message(
        self, to: str, text: str, key: str, *, group_nick: str = "", edits: str = "", file: bool = False
    ) -> None:
        """
        Send a message and return when it is taken: by the account's server, or by the room.

        Raises:
            Refused: It is not taken.
            ChannelUnavailable: Nobody knows.
        """
        self._check()
        message = self._client.make_message(
            mto=JID(to), mbody=text, mtype="groupchat" if group_nick else "chat"
        )
        message["id"] = key
        xml.fill_message(message.append, key, edits=edits, file=file, text=text)
        echo = (key, f"{to}/{group_nick}" if group_nick else to)
        taken = self._sent[echo] = asyncio.get_running_loop().create_future()
        try:
            message.send()
            if group_nick:
                await self._wait(taken)
                self._check()
                if not taken.done():
                    raise ChannelUnavailable("the room has not answered")
            else:
                await self.ping()
            if taken.done() and (error := taken.result()) is not None:
                raise Refused(xml.error_text(error), temporary=xml.error_type(error) == "wait")
        finally:
            taken.cancel()
            del self._sent[echo]

    def send_hint(self, to: str, name: str, **attributes: str) -> None:
        """Send a sign without words, if there is a connection."""
        if not self.lost.done():
            message = self._client.make_message(mto=JID(to), mtype="chat")
            for each in xml.hint(name, **attributes):
                message.append(each)
            message.send()

    def confirm_subscription(self, person: str) -> None:
        """Let somebody see whether the bot is connected."""
        self._client.make_presence(pto=JID(person), ptype="subscribed").send()

    async def slot(self, name: str, size: int, media_type: str) -> Slot:
        """A place for a file (XEP-0363). Raises `Refused` or `ChannelUnavailable`."""
        if self._upload_service is None:
            self._upload_service = await self._find_upload_service()
        request = Element(
            f"{_UPLOAD}request", {"filename": name, "size": str(size), "content-type": media_type}
        )
        answer = await self._ask("get", self._upload_service, request)
        put, get = (answer.find(f"{_UPLOAD}slot/{_UPLOAD}{each}") for each in ("put", "get"))
        if put is None or get is None:
            raise Refused("no slot")
        headers = {
            each.get("name", ""): (each.text or "").replace("\n", "")
            for each in put.iterfind(f"{_UPLOAD}header")
            if each.get("name", "").lower() in ("authorization", "cookie", "expires")
        }
        return Slot(put.get("url", ""), get.get("url", ""), headers)

    async def _find_upload_service(self) -> str:
        domain = self._config.domain
        answer = await self._ask("get", domain, Element(f"{_DISCO_ITEMS}query"))
        items = [each.get("jid", "") for each in answer.iterfind(f"{_DISCO_ITEMS}query/{_DISCO_ITEMS}item")]
        for each in (domain, *items[:20]):
            try:
                if "urn:xmpp:http:upload:0" in await self._features(each):
                    return each
            except Refused:
                continue
        raise Refused("this server takes no files")

    # ── what arrives; nothing here waits ──

    def _take_message(self, message: Any) -> None:
        stanza: Element = message.xml
        sender, me = stanza.get("from", ""), self._config.jid
        if (result := stanza.find(f"{xml.MAM}result")) is not None:
            self._take_result(result, sender or me)
            return
        if stanza.get("type") == "error" and self._take_answer(stanza, sender, stanza):
            return
        room = xml.bare(sender)
        if stanza.get("type") == "groupchat":
            if room not in self._config.rooms:
                return
            self._take_answer(stanza, sender, None)
            if sender == room and xml.status_codes(stanza) & _ROOM_CHANGED:
                self.changed.add(room)
                self._wake(room)
            if xml.stanza_id(stanza, room):
                self._wake(room)
        elif xml.stanza_id(stanza, me):
            self._wake(me)
        elif stanza.get("type") != "error" and xml.read_stanza(stanza) is not None:
            if len(self.unarchived) >= _UNARCHIVED:
                self._return(message)
                return
            self.unarchived.append((uuid.uuid4().hex, stanza))
            self._wake(me)

    def _return(self, message: Any) -> None:
        """Send back a message that is kept nowhere: its sender's program shows that it did not arrive."""
        answer = message.reply(clear=False)
        answer["type"], answer["id"] = "error", message["id"]
        answer["error"]["type"], answer["error"]["condition"] = "wait", "resource-constraint"
        answer.send()

    def _take_result(self, result: Element, sender: str) -> None:
        """Only what was asked for counts, and only of the archive that was asked."""
        place, page = self._pages.get(result.get("queryid", ""), ("", None))
        if page is None or sender != place or len(page.entries) > PAGE:
            return
        if (entry := xml.read_result(result)) is not None:
            page.entries.append(entry)

    def _take_answer(self, stanza: Element, sender: str, error: Element | None) -> bool:
        key = stanza.get("id", "")
        for name in (sender, *(to for sent, to in self._sent if error is not None and sent == key)):
            taken = self._sent.get((key, name))
            if taken is not None and xml.bare(name) == xml.bare(sender):
                if not taken.done():
                    taken.set_result(error)
                return True
        return False

    def _take_presence(self, presence: Any) -> None:
        stanza: Element = presence.xml
        sender, kind = stanza.get("from", ""), stanza.get("type", "")
        if kind == "subscribe":
            self.subscriptions.append(xml.bare(sender))
            self._wake(self._config.jid)
        joining = self._joining.get(sender)
        codes = xml.status_codes(stanza)
        if joining is not None and not joining.done() and (kind == "error" or "110" in codes):
            joining.set_result(stanza)
        elif kind == "unavailable" and "110" in codes and xml.bare(sender) in self.joined:
            self.joined.pop(xml.bare(sender))  # it tries again after a while

    def _wake(self, place: str) -> None:
        if place in self._news:
            self._news[place].set()
