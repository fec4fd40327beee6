"""
Encrypted messages whose key has not arrived: kept over crashes, answered when the key comes, or reported. A
*reference* (room, event, session) is committed with the position that passes the message; the event is
fetched again when the key comes, and repetitions are recognised by event id. The sender is notified after
`PATIENCE_S`, or at once if they withheld the key: one notice per room and reason in `QUIET_S`. Only allowed
people get references, `MAX_WAITING` in all; beyond, the person with most loses the oldest, the owner last.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from agent_core.language import _, gettext_noop, ngettext, speaking
from channels.matrix.client.json_access import JsonObject, object_of, text_of

WAITING = "waiting_for_keys"
MAX_WAITING = 300
PATIENCE_S = 5.0
QUIET_S = 600.0
_UNSIGNED = "not-signed"  # no client can send this as its reason
_CODE = re.compile(r"[a-z0-9._]{1,50}")
_REASONS = {
    "m.unverified": gettext_noop(
        "your client withholds the key from sessions that it does not trust; verify me (click on my name, "
        'then on "Verify") or allow unverified sessions in the room\'s settings'
    ),
    "m.blacklisted": gettext_noop("your client has blocked my session"),
    "m.unauthorised": gettext_noop("your client says that I am not entitled to the key"),
    "m.unavailable": gettext_noop("your client does not have the key any more"),
    _UNSIGNED: gettext_noop(
        "it comes from a session that is not verified. If it is yours, verify it in your client (Settings, "
        "Sessions, with another device of yours or your recovery key), and I will answer"
    ),
    "m.no_olm": gettext_noop("your client could not set up a secure connection with my session"),
}
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Reference:
    """One message that cannot be decrypted yet."""

    room_id: str
    event_id: str
    session_id: str
    since: float
    sender: str
    told: bool = False


class UndecryptableEvents:
    """One account's messages that wait for keys; those of ``is_owner`` longest, with own notices."""

    def __init__(
        self,
        is_owner: Callable[[str], bool] = lambda _user: False,
        language_of: Callable[[str], str] = lambda _user: "",
    ) -> None:
        self._is_owner = is_owner
        self._language_of = language_of
        self._references: dict[str, Reference] = {}
        self._withheld: dict[str, str] = {}
        """Reasons, by sender and session."""
        self._told_at: dict[tuple[str, str, bool], float] = {}
        self._telling: dict[str, tuple[str, str, bool]] = {}
        """What is being said at this moment, by the first message that it is about."""

    def __len__(self) -> int:
        return len(self._references)

    def load(self, text: str | None) -> None:
        """Load what `dump` wrote in an earlier run."""
        self._telling.clear()
        try:
            kept = json.loads(text) if text else {}
            found = [Reference(**item) for item in kept.get("references", [])]
            self._withheld = dict(kept.get("withheld", {}))
        except (ValueError, TypeError, AttributeError) as error:
            _log.error("matrix.undecryptable_unreadable", error=type(error).__name__)
            return
        self._references = {reference.event_id: reference for reference in found}

    def dump(self, *, without: Iterable[str] = ()) -> str:
        """All references, ``without`` some events, as a text to be committed with the position."""
        gone = set(without)
        kept = [asdict(one) for one in self._references.values() if one.event_id not in gone]
        return json.dumps({"references": kept, "withheld": self._withheld}, separators=(",", ":"))

    def add(
        self, room_id: str, event_id: str, session_id: str, *, sender: str, now: float, unsigned: bool = False
    ) -> None:
        """Add a message; beyond the limit, the oldest of the sender with the most is dropped."""
        if unsigned:
            self._note_reason(sender, session_id, _UNSIGNED)
        if event_id in self._references:
            return
        self._references[event_id] = Reference(room_id, event_id, session_id, now, sender)
        if len(self._references) > MAX_WAITING:
            of = Counter(one.sender for one in self._references.values())
            most = max(of, key=lambda person: (not self._is_owner(person), of[person]))
            dropped = next(one for one in self._references.values() if one.sender == most)
            _log.warning("matrix.undecryptable_dropped", room=dropped.room_id, sender=most, reason="many")
            del self._references[dropped.event_id]

    def drop(self, event_ids: Iterable[str]) -> None:
        """Drop messages that were accepted, or never will be."""
        for event_id in event_ids:
            self._references.pop(event_id, None)

    def try_later(self, event_id: str) -> None:
        """Note that the key that arrived does not decrypt this message: try others before it."""
        reference = self._references.pop(event_id, None)
        if reference is not None:
            self._references[event_id] = reference

    def drop_from(self, room_id: str, event_id: str, sender: str) -> None:
        """Drop a message of this sender in this room; what others say about it does not count."""
        reference = self._references.get(event_id)
        if reference is not None and (reference.room_id, reference.sender) == (room_id, sender):
            self.drop([event_id])

    def drop_room(self, room_id: str) -> None:
        """Drop all messages of this room."""
        self.drop([one.event_id for one in self._references.values() if one.room_id == room_id])

    def sessions(self) -> set[str]:
        """The missing room keys."""
        return {one.session_id for one in self._references.values()}

    def senders(self) -> set[str]:
        """Those of the messages."""
        return {one.sender for one in self._references.values()}

    def readable(self, has_key: Callable[[str, str, str], bool]) -> list[Reference]:
        """The messages whose keys have arrived: the owner's, then the others in order of arrival."""
        found = [one for one in self._references.values() if has_key(one.sender, one.room_id, one.session_id)]
        return sorted(found, key=lambda one: not self._is_owner(one.sender))

    def withheld(self, event: JsonObject) -> None:
        """Learn from an ``m.room_key.withheld`` that a key will not come, and why."""
        content = object_of(event, "content")
        code = text_of(content, "code")
        # ``m.no_olm`` is about all that its sender says, and names no session.
        session = text_of(content, "session_id")[:100]
        if not session or not _CODE.fullmatch(code):
            return
        self._note_reason(text_of(event, "sender"), session, code if code in _REASONS else "other")

    def _note_reason(self, sender: str, session: str, code: str) -> None:
        about = _about(sender, session)
        self._withheld.pop(about, None)
        self._withheld[about] = code
        while len(self._withheld) > 200:
            self._withheld.pop(next(iter(self._withheld)))

    def due_notices(self, now: float) -> list[tuple[str, str, list[Reference]]]:
        """
        The notices that are due: room, text and the messages that each is about.

        References that were told about recently in the same words are marked as told without further ado,
        and very old ones are dropped. What is being said (`begin_notice`) is left out.
        """
        self.drop([one.event_id for one in self._references.values() if abs(now - one.since) > 14 * 86_400.0])
        due: dict[tuple[str, str, bool], list[Reference]] = {}
        for one in self._open():
            if self._reason(one) or abs(now - one.since) >= PATIENCE_S:
                due.setdefault(self._about_what(one), []).append(one)
        told = []
        for about, references in due.items():
            if abs(now - self._told_at.get(about, -QUIET_S)) < QUIET_S:
                self.finish_notice(references)
                continue
            spoken = {self._language_of(one.sender) for one in references}
            with speaking(spoken.pop() if len(spoken) == 1 else ""):
                told.append((about[0], _text(len(references), about[1]), references))
        return told

    def begin_notice(self, references: Sequence[Reference]) -> None:
        """Note that a notice about these is being sent; until one of the two below no other is due."""
        self._telling[references[0].event_id] = self._about_what(references[0])

    def fail_notice(self, references: Sequence[Reference]) -> None:
        """Note that the notice could not be sent."""
        self._telling.pop(references[0].event_id, None)

    def finish_notice(self, references: Iterable[Reference], *, now: float | None = None) -> None:
        """Note that the notice about these was sent."""
        for one in references:
            self._telling.pop(one.event_id, None)
            one.told = True
            if now is not None:
                self._told_at[self._about_what(one)] = now

    def next_at(self) -> float | None:
        """Return when the next notice may be due; None if no event is open."""
        waits = [one.since + (0.0 if self._reason(one) else PATIENCE_S) for one in self._open()]
        return min(waits, default=None)

    def facts(self) -> dict[str, Any]:
        """Facts for the operator."""
        return {"waiting_for_keys": len(self._references)}

    def _open(self) -> list[Reference]:
        """Those about which something is still to be said, and nothing is being said."""
        busy = set(self._telling.values())
        return [
            one for one in self._references.values() if not one.told and self._about_what(one) not in busy
        ]

    def _about_what(self, one: Reference) -> tuple[str, str, bool]:
        """Return the grouping key of a notice: room, reason, and if the owner waits."""
        return one.room_id, self._reason(one), self._is_owner(one.sender)

    def _reason(self, one: Reference) -> str:
        """Return why the key of a message is withheld, or "" if unknown."""
        return self._withheld.get(_about(one.sender, one.session_id), "")


def _about(sender: str, session_id: str) -> str:
    return f"{sender} {session_id}"


def _text(count: int, code: str) -> str:
    what = ngettext("your message", "{n} messages", count)
    if not code:
        return _(
            "I cannot read {what} yet: the key has not arrived. When it does, I will answer. If it does not, "
            "please send it again.",
            what=what,
        )
    reason = _REASONS.get(code, gettext_noop("your client withholds the key"))
    return _("I cannot read {what}: {reason}.", what=what, reason=_(reason))
