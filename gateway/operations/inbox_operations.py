"""`squidbot restored`: accepts a database that is older than it was: a copy, or a restored server."""

from __future__ import annotations

from datetime import datetime

from gateway.errors import NotFound
from gateway.operations.backup.restore import runs_once
from gateway.store.lease import Holders
from gateway.store.opening import open_postgres
from gateway.store.rollback_guard import Extent, Gap, write_restore
from gateway.store.sql.quarantine_after_restore import QuarantineCounts, set_aside_open_work
from gateway.store.sqlite.sqlite_restore import examine_copy, quarantine_open_work
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home


def restored(home: Home, url: str, *, now: datetime, until: datetime | None, moved: bool) -> QuarantineCounts:
    """
    Prepare a restored database for a daemon, in one transaction.

    Open work is quarantined, uncertain answers are probed, Matrix accounts get a new device, and repeated
    messages from before ``until`` (the lost copy's last run, default now) wait for a person. ``moved``:
    nothing is lost, only the server is noted. Raises AlreadyRunning, LeaseTaken, ConfigInvalid or
    StoreUnavailable.
    """
    with open_postgres(), hold_home(open_home(home.root, as_guest=True), purpose="command"):
        from gateway.store.postgres.copying_into_postgres import PostgresTables
        from gateway.store.postgres.postgres_queue import HOME
        from gateway.store.postgres.restore_detection import AcceptedRestore, write_accepted_restore

        # A daemon that goes on with the new server need not be stopped to be told that it is the right one.
        with PostgresTables.open(url, HOME, None if moved else Holders(home.lease_holders)) as tables:
            if moved:
                write_accepted_restore(tables.db, AcceptedRestore(now, None))
                return QuarantineCounts()
            last = min(until or now, now)
            parked = set_aside_open_work(
                tables.db, backed_up_at=last.timestamp(), now=now.timestamp(), runs_once=runs_once
            )
            tables.accounts.make_older()
            write_accepted_restore(tables.db, AcceptedRestore(now, Gap(last, last)))
            return parked


def accept_copy(home: Home, *, now: datetime, until: datetime | None, moved: bool) -> QuarantineCounts:
    """Do `restored` for an older embedded copy. Raises AlreadyRunning, NotFound or StoreUnusable."""
    with hold_home(open_home(home.root, as_guest=True), purpose="command"):
        if not home.database.exists():
            raise NotFound(f"there is no database in {home.root}")
        _, secret, inbox, outbox = examine_copy(home.database)
        last, parked = min(until or now, now), QuarantineCounts()
        if not moved:
            parked = quarantine_open_work(
                home.database, backed_up_at=last.timestamp(), now=now.timestamp(), runs_once=runs_once
            )
        gap = None if moved else Gap(last, last)
        extent = Extent.from_counts(secret, inbox, outbox)
        write_restore(home.high_water_mark, extent, made_at=None, now=now, gap=gap)
        return parked
