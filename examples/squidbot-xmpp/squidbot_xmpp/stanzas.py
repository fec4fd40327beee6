"""
Reads what people's clients write, and writes what they read: pure functions on XML.

Nothing here believes a stanza about who sent it but for its ``from``, which the account's own server has set,
and what a room's archive says of its occupants.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from xml.etree.ElementTree import Element, SubElement

CLIENT = "{jabber:client}"
MAM = "{urn:xmpp:mam:2}"
MARKERS = "{urn:xmpp:chat-markers:0}"
MUC, MUC_USER = "{http://jabber.org/protocol/muc}", "{http://jabber.org/protocol/muc#user}"
RECEIPTS = "{urn:xmpp:receipts}"
REPLACE = "{urn:xmpp:message-correct:0}replace"
RETRACT = "{urn:xmpp:message-retract:1}retract"
RSM = "{http://jabber.org/protocol/rsm}"
STATES = "{http://jabber.org/protocol/chatstates}"
STANZA_ERROR = "{urn:ietf:params:xml:ns:xmpp-stanzas}"
STANZA_ID = "{urn:xmpp:sid:0}"
_DELAY, _FORWARDED = "{urn:xmpp:delay}delay", "{urn:xmpp:forward:0}forwarded"
_NO_STORE = "{urn:xmpp:hints}no-store"
_OOB = "{jabber:x:oob}"
_ENCRYPTED = frozenset(
    (
        "{eu.siacs.conversations.axolotl}encrypted",
        "{urn:xmpp:omemo:2}encrypted",
        "{urn:xmpp:openpgp:0}openpgp",
        "{jabber:x:encrypted}x",
    )
)
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Entry:
    """A message of an archive: its id there, when it came, and the message. ``at`` has a zone."""

    id: str
    at: datetime
    stanza: Element

    @property
    def sender(self) -> str:
        """The full address in ``from``."""
        return self.stanza.get("from", "")


@dataclass(frozen=True, slots=True)
class Said:
    """
    The meaning of a message.

    ``replace`` and ``withdraw`` change the one that ``target`` names, ``bounce`` says that it did not arrive
    (``text`` says why). ``file`` is the address of the file that it is; ``encrypted``: it cannot be read.
    """

    kind: Literal["message", "replace", "withdraw", "bounce"]
    text: str = ""
    target: str = ""
    file: str = ""
    encrypted: bool = False


def bare(jid: str) -> str:
    """An address without its resource, or a room's without the nick."""
    return jid.partition("/")[0]


def resource(jid: str) -> str:
    """The part behind the slash; of an occupant it is the nick."""
    return jid.partition("/")[2]


def read_stanza(stanza: Element) -> Said | None:
    """The meaning of a message; None: it says nothing to the bot."""
    kind = stanza.get("type", "normal")
    if kind == "error":
        return Said("bounce", error_text(stanza), target=stanza.get("id", ""))
    if kind not in ("chat", "normal", "groupchat"):
        return None
    if (retract := stanza.find(RETRACT)) is not None:
        return Said("withdraw", target=retract.get("id", ""))
    text = stanza.findtext(f"{CLIENT}body") or ""
    encrypted = any(child.tag in _ENCRYPTED for child in stanza)
    if not text and not encrypted:
        return None
    if (replace := stanza.find(REPLACE)) is not None and not encrypted:
        return Said("replace", text, target=replace.get("id", ""))
    url = stanza.findtext(f"{_OOB}x/{_OOB}url") or ""
    return Said("message", text, file=url if url.strip() == text.strip() else "", encrypted=encrypted)


def error_text(stanza: Element) -> str:
    """Why a stanza was refused: the condition's name, and the server's words if there are any."""
    error = stanza.find(f"{CLIENT}error")
    found = (
        [child.tag.removeprefix(STANZA_ERROR) for child in error if child.tag.startswith(STANZA_ERROR)]
        if (error is not None)
        else []
    )
    words = (error.findtext(f"{STANZA_ERROR}text") or "") if error is not None else ""
    condition = next((each for each in found if each != "text"), "refused")
    return f"{condition}: {words[:200]}" if words else condition


def error_type(stanza: Element) -> str:
    """``cancel``, ``auth``, ``modify``, ``wait`` or ``continue``."""
    error = stanza.find(f"{CLIENT}error")
    return error.get("type", "cancel") if error is not None else "cancel"


def stanza_id(stanza: Element, by: str) -> str:
    """The id that the archive of ``by`` gave a message; empty: it is not kept there."""
    found = [each.get("id", "") for each in stanza.findall(f"{STANZA_ID}stanza-id") if each.get("by") == by]
    return found[0] if len(found) == 1 else ""


def real_address(stanza: Element) -> str:
    """
    The bare address of an occupant, as the room's archive has noted it; empty: unknown.

    Some archives put their note beside one that the occupant has written: two are none.
    """
    notes = stanza.findall(f"{MUC_USER}x")
    if len(notes) != 1:
        return ""
    items = notes[0].findall(f"{MUC_USER}item")
    return bare(items[0].get("jid", "")).lower() if len(items) == 1 else ""


def status_codes(stanza: Element) -> set[str]:
    """The codes with which a room explains a presence or a message of its own."""
    return {each.get("code", "") for each in stanza.iterfind(f"{MUC_USER}x/{MUC_USER}status")}


def read_result(result: Element) -> Entry | None:
    """A message of an archive's answer, without words if it cannot be read; None: it has no id."""
    forwarded = result.find(_FORWARDED)
    stanza = forwarded.find(f"{CLIENT}message") if forwarded is not None else None
    delay = forwarded.find(_DELAY) if forwarded is not None else None
    try:
        at = datetime.fromisoformat(delay.get("stamp", "") if delay is not None else "")
    except ValueError:
        at, stanza = datetime.fromtimestamp(0, UTC), None
    found = stanza if stanza is not None else Element(f"{CLIENT}message")
    return (
        Entry(result.get("id", ""), at if at.tzinfo else at.replace(tzinfo=UTC), found)
        if result.get("id")
        else None
    )


def without_call(text: str, nick: str) -> tuple[str, bool]:
    """The text without the bot's name before it, and whether it is meant for the bot."""
    rest = text.lstrip()
    for call in (nick, f"@{nick}"):
        if rest[: len(call)].lower() == call.lower() and rest[len(call) : len(call) + 1] in (":", ","):
            return rest[len(call) + 1 :].lstrip(), True
    words = (word.strip(".,:;!?()").lower() for word in text.split())
    return text, f"@{nick}".lower() in words


def clean(text: str) -> str:
    """The text without the characters that would end the connection."""
    return _NOT_XML.sub("", text.replace("\r\n", "\n"))


def mam_query(query_id: str, *, peer: str, after: str, before: str | None, start: str, most: int) -> Element:
    """A request for a page of an archive; ``before`` empty: its end."""
    query = Element(f"{MAM}query", {"queryid": query_id})
    form = SubElement(query, "{jabber:x:data}x", {"type": "submit"})
    fields = {"FORM_TYPE": "urn:xmpp:mam:2", "with": peer, "start": start}
    for name, value in fields.items():
        if value:
            field = SubElement(form, "{jabber:x:data}field", {"var": name})
            SubElement(field, "{jabber:x:data}value").text = value
    rsm = SubElement(query, f"{RSM}set")
    SubElement(rsm, f"{RSM}max").text = str(most)
    if after:
        SubElement(rsm, f"{RSM}after").text = after
    if before is not None:
        SubElement(rsm, f"{RSM}before").text = before
    return query


def fill_message(
    add: Callable[[Element], object], key: str, *, edits: str = "", file: bool, text: str
) -> None:
    """The parts of a message of ours besides its text."""
    add(Element(f"{STANZA_ID}origin-id", {"id": key}))
    if edits:
        add(Element(REPLACE, {"id": edits}))
    if file:
        oob = Element(f"{_OOB}x")
        SubElement(oob, f"{_OOB}url").text = text
        add(oob)


def hint(name: str, **attributes: str) -> list[Element]:
    """A message without words, which no archive keeps."""
    return [Element(name, attributes), Element(_NO_STORE)]
