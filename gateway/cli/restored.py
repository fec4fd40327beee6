"""The command ``squidbot restored``, for a database that is older than it was."""
# ruff: noqa: PLC0415 - every command has the options of `Where`, and loads what it needs

from __future__ import annotations

import sys
from datetime import UTC, datetime

from gateway.cli.command_context import HERE, Where, confirm
from gateway.cli.output import quiet_logs


def restored(
    *, until: datetime | None = None, moved: bool = False, yes: bool = False, where: Where = HERE
) -> int:
    """
    Accept a database that is older than it was (an old gateway.db, a restored server); no daemon may run.

    Work that was open is not simply repeated: squidbot looks for answers that may have arrived, and
    quarantines messages that may have been answered since. On a server, Matrix accounts get a new device.

    Args:
        until: The latest time at which squidbot can have run on what is lost (default: now), such as
            2026-01-03T14:05.
        moved: Nothing is lost: the database is on another server, or on a replica that had everything.
        yes: Do not ask.
    """
    from gateway.operations.backup.restore import accept_copy, accept_restored_server
    from gateway.settings import load_settings
    from gateway.system.home import Home, find_home

    quiet_logs(verbose=where.verbose)
    home = Home(find_home(where.home))
    url = load_settings(where.config_path or home.config_file).store_url
    if until is not None and until.tzinfo is None:
        until = until.astimezone()
    parks = f"Quarantine all open work{' and replace the Matrix devices' if url else ''}?"
    what = "Note that nothing is lost?" if moved else parks
    if not yes and not confirm(what):
        sys.stderr.write("nothing was changed\n")
        return 1
    now = datetime.now(UTC)
    if url is None:
        parked = accept_copy(home, now=now, until=until, moved=moved)
    else:
        parked = accept_restored_server(home, url, now=now, until=until, moved=moved)
    if moved:
        sys.stdout.write("squidbot may start\n")
        return 0
    new_devices = ". Matrix accounts get a new device at the next start, signed by the same identity"
    sys.stdout.write(
        f"{parked.answers} answers are looked for, {parked.questions} questions wait for a person (squidbot"
        f" inbox list --quarantine), {parked.ticks} check-ins were dropped, {parked.jobs} jobs are paused"
        f"{new_devices if url else ''}\n"
    )
    return 0
