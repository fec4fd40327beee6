"""The command ``squidbot restored``, for a database that its server has restored to an earlier moment."""
# ruff: noqa: PLC0415 - every command has the options of `Where`, and loads what it needs

from __future__ import annotations

import sys
from datetime import UTC, datetime

from gateway.cli.context import HERE, Where, agreed
from gateway.cli.output import quiet_logs


def restored(
    *, until: datetime | None = None, moved: bool = False, yes: bool = False, where: Where = HERE
) -> int:
    """
    Report that the server of gateway.store was restored to an earlier moment; no daemon may run.

    Work that was open is not simply repeated: squidbot looks for answers that may have arrived, and
    quarantines messages that may have been answered since. Matrix accounts get a new device.

    Args:
        until: The latest time at which squidbot can have run on what is lost (default: now), such as
            2026-01-03T14:05.
        moved: Nothing is lost: the database is on another server, or on a replica that had everything.
        yes: Do not ask.
    """
    from gateway.errors import ConfigInvalid
    from gateway.operations.restored import restored as run
    from gateway.settings import load_settings
    from gateway.system.home import Home, find_home

    quiet_logs(verbose=where.verbose)
    home = Home(find_home(where.home))
    url = load_settings(where.named or home.config_file).store_url
    if url is None:
        raise ConfigInvalid(
            "gateway.store names no database; `squidbot restore` brings a backup of a home back"
        )
    if until is not None and until.tzinfo is None:
        until = until.astimezone()
    parks = "Quarantine all open work and replace the Matrix devices?"
    what = "Note that nothing is lost?" if moved else parks
    if not yes and not agreed(what):
        sys.stderr.write("nothing was changed\n")
        return 1
    parked = run(home, url, now=datetime.now(UTC), until=until, moved=moved)
    if moved:
        sys.stdout.write("squidbot may start on this server\n")
        return 0
    sys.stdout.write(
        f"{parked.answers} answers are looked for, {parked.questions} questions wait for a person (squidbot"
        f" inbox list --quarantine), {parked.ticks} check-ins were dropped, {parked.jobs} jobs are paused."
        " Matrix accounts get a new device at the next start, signed by the same identity\n"
    )
    return 0
