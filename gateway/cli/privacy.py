"""The commands ``squidbot export`` and ``squidbot forget``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gateway.cli.command_context import HERE, Json, Where, confirm
from gateway.cli.output import print_result, quiet_logs

if TYPE_CHECKING:
    from agent_core.storage.layout import Layout
    from gateway.operations.privacy.inventory import Person
    from gateway.operations.privacy.person_erasure import ErasureResult
    from gateway.settings import Settings
    from gateway.store.place import QueuePlace
    from gateway.system.home import Home

_Address = Annotated[
    str, Parameter(help="Addresses of one person (@person:server, person@domain), or owner.")
]


_KINDS = {
    "lines": "lines of histories",
    "queue_inbox": "received messages",
    "queue_outbox": "answers and other messages to them",
    "queue_steps": "steps of turns",
    "queue_journal": "lines not yet in a history",
    "queue_usage": "records of cost",
    "queue_ledger": "runs of jobs",
    "queue_collected": "alerts of the next digest",
    "queue_receipts": "tool calls",
}
"""What is counted, where its name alone does not say it."""

_BEYOND = "not reached from here: servers of Matrix and mail, providers of models, journald"


def export(*people: _Address, output: Path | None = None, where: Where = HERE, as_json: Json = False) -> int:
    """
    Export all data of one person into a new folder.

    Args:
        output: The folder (default: squidbot-export-PERSON here).
    """
    from datetime import UTC, datetime

    from agent_core.storage.layout import folder_name
    from gateway.operations.privacy.export import export_person

    home, layout, person, settings, place = resolve_person(people, where)
    target = (output or Path(f"squidbot-export-{folder_name(person.name)}")).absolute()
    storage = settings.attachments.storage(home.root)
    found = export_person(layout, place, person, target, now=datetime.now(UTC), storage=storage)
    counts = found.counts()
    print_result(as_json, {"folder": str(target), **counts}, f"{target}\nexported: {_counted(counts)}")
    return 0


def forget(
    *people: _Address, dry_run: bool = False, yes: bool = False, where: Where = HERE, as_json: Json = False
) -> int:
    """
    Erase all data of one person permanently. The daemon must be stopped.

    Their lines in shared conversations become a marker. Their words that answers to others
    repeat stay; the command lists where. Backups are not changed; the command lists those made here.

    Args:
        dry_run: Change nothing; show what would be removed.
        yes: Do not ask.
    """
    from contextlib import ExitStack
    from dataclasses import replace
    from datetime import UTC, datetime
    from functools import partial

    from gateway.operations.privacy.person_erasure import forget_person
    from gateway.store.opening import lock_queue_sync
    from gateway.store.place import ServerDatabase
    from gateway.system.clock import SystemClock
    from gateway.system.home import open_home
    from gateway.system.lock import hold_home

    home, layout, person, settings, place = resolve_person(people, where)
    storage, now = settings.attachments.storage(home.root), datetime.now(UTC)
    with ExitStack() as held:
        if not dry_run:
            open_home(home.root, as_guest=True)
            held.enter_context(hold_home(home, purpose="command"))
        store = None if dry_run else settings.store_url
        lease = held.enter_context(lock_queue_sync(home.database, store, home.lease_holders, SystemClock()))
        if lease is not None and isinstance(place, ServerDatabase):
            place = replace(place, needs=lease.proof)
        erase = partial(forget_person, layout, place, person, storage=storage, now=now)
        seen = erase(only_look=True)
        if not dry_run:
            if not as_json:
                print(f"stored about {', '.join(sorted(person.addresses))}: {_counted(seen.counts)}")
            if not yes and not confirm("Erase all of it permanently?"):
                print("nothing was changed", file=sys.stderr)
                return 1
            if lease is not None:
                lease.confirm()
            seen = erase()
    from gateway.app.erasures import tokens_of

    seen.counts["tokens"] = tokens_of(settings, home, person.addresses, new=None if dry_run else "")
    print_result(as_json, _report(seen, dry_run=dry_run), _summary(seen, dry_run=dry_run))
    return 0


def resolve_person(
    people: tuple[str, ...], where: Where
) -> tuple[Home, Layout, Person, Settings, QueuePlace]:
    """Resolve the person of a request, their data's place and the settings."""
    from dataclasses import replace

    from agent_core.storage.layout import Layout
    from gateway.errors import NotFound
    from gateway.operations.privacy.inventory import people as who
    from gateway.routing.access import normalise
    from gateway.routing.links import TOPIC, read_book
    from gateway.settings import load_settings
    from gateway.settings.accounts import access_of
    from gateway.store.personal_rows import read_text
    from gateway.store.place import place_of_queue
    from gateway.system.home import Home, find_home
    from gateway.system.restore_marker import check_no_restore_pending

    quiet_logs(verbose=where.verbose)
    home = Home(find_home(where.home))
    check_no_restore_pending(home.root)
    settings = load_settings(where.config_path or home.config_file, missing_ok=True)
    place = place_of_queue(home.database, settings.store_url)
    if not place.exists():
        raise NotFound(f"there is nothing in {home.root} yet: is it the right home (--home, SQUIDBOT_HOME)?")
    person = who(people, [alias.address for alias in settings.owner.aliases])
    access = access_of(settings)
    access.link(read_book(read_text(place, TOPIC)).mains())
    linked = access.household.same_person(map(normalise, person.addresses))
    person = replace(person, addresses=person.addresses | linked)
    return home, Layout(home.root, home.path(settings.agents.workspace)), person, settings, place


def _counted(counts: dict[str, int]) -> str:
    words = {name: _KINDS.get(name, name.removeprefix("queue_").replace("_", " ")) for name in counts}
    said = [f"{words[name]} ({count})" for name, count in counts.items() if count]
    return ", ".join(said) or "nothing"


def _report(seen: ErasureResult, *, dry_run: bool) -> dict[str, object]:
    return {
        "removed": not dry_run,
        **seen.counts,
        "kept_attachments": seen.kept_files,
        "repeated_in": list(seen.repeated),
        "still_named_in": list(seen.still_named),
        "backups": list(seen.backups),
    }


def _summary(seen: ErasureResult, *, dry_run: bool) -> str:
    from gateway.system.terminal_text import plain_line

    lines = [f"{'would be removed' if dry_run else 'removed'}: {_counted(seen.counts)}"]
    if seen.kept_files:
        lines.append(f"{seen.kept_files} files stay, because messages of others refer to them")
    if seen.repeated:
        stay = "would stay" if dry_run else "stay"
        lines.append(f"answers to others repeat their words; these {stay}:")
        lines += [f"  {plain_line(place)}" for place in seen.repeated]
    if seen.still_named:
        lines.append("an address still appears in (the configuration, words of others, logs):")
        lines += [f"  {plain_line(name)}" for name in seen.still_named]
    if seen.backups:
        lines.append("backups, which are not changed:")
        lines += [f"  {plain_line(path)}" for path in seen.backups]
    lines += [] if dry_run else [_BEYOND]
    return "\n".join(lines)
