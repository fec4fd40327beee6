"""The command ``squidbot person move``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

from gateway.cli.command_context import HERE, Json, Where
from gateway.cli.generated_commands import make_group
from gateway.cli.output import print_result

person = make_group(__name__)


@person.command(name="move")
def person_move(old: str, new: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Give all data of a person to their new address. The daemon must be stopped.

    Conversations, memory, reminders, grants and waiting messages go on under the new address. Afterwards
    put it into the configuration in the place of the old one.

    Args:
        old: The address until now, such as @bob:old.example.
        new: The address from now on; nobody else may be known under it.
    """
    from dataclasses import replace

    from gateway.app.erasures import tokens_of
    from gateway.cli.privacy import resolve_person
    from gateway.operations.privacy.moved_person import move_person
    from gateway.routing.access import normalise
    from gateway.store.opening import lock_queue_sync
    from gateway.store.place import ServerDatabase
    from gateway.system.clock import SystemClock
    from gateway.system.home import open_home
    from gateway.system.lock import hold_home

    home, layout, _, settings, place = resolve_person((old,), where)
    aliases = tuple(alias.address for alias in settings.owner.aliases)
    open_home(home.root, as_guest=True)
    with (
        hold_home(home, purpose="command"),
        lock_queue_sync(home.database, settings.store_url, home.lease_holders, SystemClock()) as lease,
    ):
        if lease is not None and isinstance(place, ServerDatabase):
            place = replace(place, needs=lease.proof)
        counts = move_person(layout, place, old, new, aliases)
    counts["tokens"] = tokens_of(settings, home, [normalise(old)], new=normalise(new))
    answer = {"old": old, "new": new, **counts}
    print_result(
        as_json,
        answer,
        f"{old} is {new} now, with {sum(counts.values())} pieces of data. Put {new} in its place in the "
        "configuration (allow_from, owner.aliases), then start squidbot.",
    )
    return 0
