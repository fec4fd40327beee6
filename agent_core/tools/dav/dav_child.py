"""
The process that reads what a calendar server sends. Before anything of others is loaded the process gives up
the network and every file but its libraries (`confine`), and its memory is the kernel's to limit. XML with a
document type is refused, so no entity is ever expanded. A request names an operation of `_OPERATIONS`; the
answer is JSON, ``{"problem": …}`` for one that cannot be done.
"""

from __future__ import annotations

import json
import re
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from unicodedata import normalize
from xml.etree import ElementTree as ET
from xml.parsers import expat
from zoneinfo import ZoneInfo

from agent_core.children.service_child import Work, serve_engine
from agent_core.children.service_confinement import library_paths
from agent_core.text import one_line

_MEMORY_BYTES = 600_000_000
_ESCAPED = re.compile(r"\\([,;\\])")


def read_xml(body: bytes) -> ET.Element:
    """Read a document. Raises ValueError for what is none, or has a document type."""
    builder = ET.TreeBuilder()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartElementHandler = lambda tag, attributes: builder.start(_qualified(tag), attributes)
    parser.EndElementHandler = lambda tag: builder.end(_qualified(tag))
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = _refuse
    parser.buffer_text = True
    try:
        parser.Parse(body, True)
        return builder.close()
    except (expat.ExpatError, AssertionError) as error:
        raise ValueError(f"it is no XML: {error}") from None


def _qualified(tag: str) -> str:
    return f"{{{tag}" if "}" in tag else tag


def _refuse(*_: object) -> None:
    raise ValueError("it has a document type")


def responses_in(body: bytes) -> list[dict[str, Any]]:
    """
    Return what a multistatus says: ``href`` and ``props`` each, only properties with a success.

    A property has its ``text``, the ``hrefs`` in it, and the local ``names`` of its children, with the
    ``name`` attribute of those that have one instead.
    """
    found = []
    for response in read_xml(body).iter("{DAV:}response"):
        props: dict[str, Any] = {}
        for stat in response.iter("{DAV:}propstat"):
            if "200" in stat.findtext("{DAV:}status", "").split():
                props |= {_local(each.tag): _property(each) for each in stat.findall("{DAV:}prop/*")}
        found.append({"href": response.findtext("{DAV:}href", "").strip(), "props": props})
    return found


def _property(element: ET.Element) -> dict[str, Any]:
    return {
        "text": element.text or "",
        "hrefs": [(each.text or "").strip() for each in element.iter("{DAV:}href")],
        "names": [each.get("name") or _local(each.tag) for each in element.iter() if each is not element],
    }


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _objects(request: Mapping[str, Any], kind: str) -> Iterator[dict[str, str]]:
    """The objects in the answers of several collections: ``id``, ``calendar``, ``data``."""
    for one in request["answers"]:
        for response in responses_in(b64decode(one["body"])):
            data = response["props"].get(kind, {}).get("text", "")
            name = response["href"].rstrip("/").rpartition("/")[2]
            if data:
                yield {"id": f"{one['name']}/{name}", "calendar": one["title"], "data": data}


def contacts_in(objects: Iterator[Mapping[str, str]], words: str) -> dict[str, Any]:
    """Return the contacts that have all the words in name or addresses."""
    from icalendar.parser import Contentlines  # noqa: PLC0415 - after the process was confined

    wanted, found, unread = normalize("NFC", words).casefold().split(), [], 0
    for each in objects:
        card: dict[str, Any] = {"name": "", "mail": [], "phone": []}
        try:
            for line in Contentlines.from_ical(each["data"]):
                if not line:
                    continue
                name, _, value = line.parts()
                key = name.upper().rpartition(".")[2]
                if key == "FN":
                    card["name"] = one_line(normalize("NFC", _ESCAPED.sub(r"\1", value)), 100)
                elif key in ("EMAIL", "TEL"):
                    card["mail" if key == "EMAIL" else "phone"].append(one_line(value, 100))
        except Exception:  # noqa: BLE001 - one broken card hides no other
            unread += 1
            continue
        text = f"{card['name']} {' '.join(card['mail'])}".casefold()
        if all(word in text for word in wanted):
            found.append(card)
    shown = sorted(found, key=lambda card: str(card["name"]).casefold())[:20]
    return {"contacts": shown, "more": len(found) - len(shown), "unread": unread}


def _times(request: Mapping[str, Any]) -> tuple[ZoneInfo, datetime]:
    return ZoneInfo(request["zone"]), datetime.fromisoformat(request["now"]).astimezone(UTC)


def _list(request: Mapping[str, Any]) -> dict[str, Any]:
    from agent_core.tools.dav.events import list_occurrences  # noqa: PLC0415 - after the process was confined

    first, last = (datetime.fromisoformat(request[name]) for name in ("first", "last"))
    objects = list(_objects(request, "calendar-data"))
    return list_occurrences(objects, first, last, _times(request)[0], request["words"])


def _reminders(request: Mapping[str, Any]) -> list[dict[str, str]]:
    from agent_core.tools.dav.events import list_reminders  # noqa: PLC0415 - after the process was confined

    first, last, until = (datetime.fromisoformat(request[name]) for name in ("first", "last", "until"))
    objects = list(_objects(request, "calendar-data"))
    return list_reminders(objects, first, last, until, _times(request)[0])


def _span(request: Mapping[str, Any]) -> dict[str, Any]:
    from agent_core.tools.dav.events import as_time, read_moment  # noqa: PLC0415 - after the process was confined

    zone = _times(request)[0]
    return {name: as_time(read_moment(request[name], zone), zone).isoformat() for name in ("first", "last")}


def _make(request: Mapping[str, Any]) -> dict[str, Any]:
    from agent_core.tools.dav import events  # noqa: PLC0415 - after the process was confined

    zone, now = _times(request)
    make = events.make_task if request["task"] else events.make_event
    data = make(request["fields"], uid=request["uid"], zone=zone, now=now)
    return {"data": data} | events.show_object(data, zone)


def _change(request: Mapping[str, Any]) -> dict[str, Any]:
    from agent_core.tools.dav import events  # noqa: PLC0415 - after the process was confined

    zone, now = _times(request)
    data = b64decode(request["object"]).decode()
    if request["task"]:
        return events.finish_task(data, now=now)
    fields, cancel = request["fields"], request["cancel"]
    at = str(fields.get("occurrence") or "")
    return events.change_event(data, fields, occurrence=at, zone=zone, now=now, cancel=cancel)


def _tasks(request: Mapping[str, Any]) -> dict[str, Any]:
    from agent_core.tools.dav.events import list_tasks  # noqa: PLC0415 - after the process was confined

    return list_tasks(_objects(request, "calendar-data"), _times(request)[0])


def _find(request: Mapping[str, Any]) -> dict[str, str]:
    from agent_core.tools.dav.invitations import find_by_uid  # noqa: PLC0415 - after the process was confined

    return {"id": find_by_uid(_objects(request, "calendar-data"), request["uid"])}


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    from agent_core.tools.dav import events, invitations  # noqa: PLC0415 - after the process was confined

    zone, now = _times(request)
    data, stored = (b64decode(request[name]).decode("utf-8", "replace") for name in ("data", "stored"))
    if request["only_uid"]:
        return {"uid": invitations.uid_in(data)}
    given = {name: request[name] for name in ("mine", "sent_by", "times")}
    try:
        return invitations.answer_invitation(data, stored, request["answer"], zone=zone, now=now, **given)
    except events.Unusable:
        raise
    except Exception as error:  # the library raises many
        raise events.Unusable(invitations.UNREADABLE) from error


_OPERATIONS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "responses": lambda request: responses_in(b64decode(request["body"])),
    "list": _list,
    "reminders": _reminders,
    "tasks": _tasks,
    "contacts": lambda request: contacts_in(_objects(request, "address-data"), request["words"]),
    "span": _span,
    "make": _make,
    "change": _change,
    "find": _find,
    "answer": _answer,
}


def answer(request: Mapping[str, Any], _: threading.Event | None = None) -> str:
    """The answer to one request."""
    from agent_core.tools.dav.events import Unusable  # noqa: PLC0415 - after the process was confined

    try:
        return json.dumps(_OPERATIONS[request["operation"]](request))
    except Unusable as error:
        return json.dumps({"problem": str(error)})


def _load() -> Work:
    import recurring_ical_events  # noqa: F401, PLC0415 - after the process was confined

    return answer


def main() -> None:
    """Serve the socket that is named on the command line."""
    packages = ("agent_core", "icalendar", "recurring_ical_events", "x_wr_timezone", "tzdata")
    serve_engine(_load, readable=library_paths(*packages), memory_bytes=_MEMORY_BYTES)


if __name__ == "__main__":
    main()
