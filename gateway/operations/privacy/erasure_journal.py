"""
Records what is still to be erased, in case `squidbot forget` is killed. What a person said is found by their
name on it, and what belongs to it by what they said: the answers, lines of a room's memory, files. Once the
first is gone, the rest could not be found any more. So all of it is noted before the first step
(``state/forgetting-….json``), and the note is taken away after the last. The note of `squidbot person move`
is read here, too: the daemon looks for both.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_core import files
from agent_core.messages import SessionKey
from agent_core.storage import durable_files
from agent_core.storage.history_lines import as_object
from agent_core.storage.layout import Layout
from gateway.errors import StateUnusable

if TYPE_CHECKING:
    from gateway.operations.privacy.inventory import Person, PersonFiles
    from gateway.operations.privacy.personal_histories import StoredHistories

_NAME = "forgetting-{}.json"
MOVE_FILE_NAME = "moving-person.json"


def merge_journal(layout: Layout, kept: StoredHistories, found: PersonFiles) -> PersonFiles:
    """Combine the files found now with those of an interrupted run."""
    from gateway.operations.privacy.inventory import Share

    shares = {share.key: share for share in found.shares}
    attachments, turns = set(found.attachments), set(found.known_turns)
    for plan in _plans(layout, found.person).values():
        attachments |= set(plan["attachments"])
        turns |= set(plan["turns"])
        for text, whole in plan["sessions"].items():
            key = SessionKey.parse(text)
            history = kept.history(key)
            # A history that is there and in which nothing of theirs was found has become that of others.
            gone = Share(history, whole and not history.exists(), frozenset(), 0)
            now = shares.get(key, gone)
            shares[key] = replace(now, turns=now.turns | set(plan["turns"]))
    return replace(
        found,
        shares=sorted(shares.values(), key=lambda share: str(share.key)),
        attachments=frozenset(attachments),
        known_turns=frozenset(turns),
    )


def begin(layout: Layout, found: PersonFiles) -> None:
    """Record durably what is going to be removed. Raises OSError; nothing was changed then."""
    addresses = sorted(found.person.addresses)
    digest = hashlib.sha256("\n".join(addresses).encode()).hexdigest()[:16]
    plan = {
        "addresses": addresses,
        "turns": sorted(found.turns),
        "attachments": sorted(found.attachments),
        "sessions": {str(share.key): share.whole for share in found.shares},
    }
    files.replace(_folder(layout) / _NAME.format(digest), json.dumps(plan).encode())


def finish(layout: Layout, person: Person) -> None:
    """Remove the record: everything is erased."""
    for path in _plans(layout, person):
        path.unlink(missing_ok=True)
    files.sync(_folder(layout))


def interrupted_erasures(layout: Layout) -> list[tuple[str, ...]]:
    """The addresses of every person whose erasure was interrupted."""
    found = (as_object(durable_files.read(path)) for path in sorted(_folder(layout).glob(_NAME.format("*"))))
    return [tuple(plan["addresses"]) for plan in found if plan is not None and _is_one(plan)]


def interrupted_move(layout: Layout) -> list[str] | None:
    """The old and the new address of a move that was interrupted."""
    with suppress(OSError, ValueError):
        return [str(one) for one in json.loads((_folder(layout) / MOVE_FILE_NAME).read_bytes())]
    return None


def check_no_move_pending(layout: Layout) -> None:
    """
    Refuse to work on a home in which a person has half moved: the rest would replace what is said meanwhile.

    Raises:
        StateUnusable: The text names the command that does the rest.
    """
    if addresses := interrupted_move(layout):
        command = f"squidbot person move {shlex.join(addresses)}"
        raise StateUnusable(f"a move to a new address was interrupted; finish it first: {command}")


def _folder(layout: Layout) -> Path:
    return layout.home / "state"


def _plans(layout: Layout, person: Person) -> dict[Path, dict[str, Any]]:
    """Return the stored plans about a person who shares an address with this one."""
    found = {}
    for path in sorted(_folder(layout).glob(_NAME.format("*"))):
        plan = as_object(durable_files.read(path))
        if plan is not None and _is_one(plan) and person.addresses & set(plan["addresses"]):
            found[path] = plan
    return found


def _is_one(plan: dict[str, Any]) -> bool:
    """Return True if a plan has the form that `begin` writes; it may come from a foreign backup."""
    lists = (plan.get("addresses"), plan.get("turns"), plan.get("attachments"))
    sessions = plan.get("sessions")
    if not isinstance(sessions, dict) or not all(isinstance(whole, bool) for whole in sessions.values()):
        return False
    try:
        for key in sessions:
            SessionKey.parse(key)
    except ValueError:
        return False
    return all(isinstance(one, list) and all(isinstance(text, str) for text in one) for one in lists)
