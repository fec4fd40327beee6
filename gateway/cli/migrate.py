"""The command ``squidbot migrate``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

import sys

from gateway.cli.command_context import Where
from gateway.cli.output import quiet_logs
from gateway.errors import ConfigInvalid
from gateway.settings import load_settings
from gateway.store.opening import migrate_store
from gateway.system.home import Home, find_home


def run_migrate(*, to: str | None, where: Where) -> int:
    """Make tables, or move everything."""
    quiet_logs(verbose=where.verbose)
    home = Home(find_home(where.home))
    settings = load_settings(where.config_path or home.config_file)
    workspace = home.path(settings.agents.workspace)
    if to is not None:
        from gateway.operations.migration.migrate_operation import move_to_embedded, to_postgres
        from gateway.system.clock import SystemClock

        if to == "embedded" and settings.store_url is not None:
            moved = move_to_embedded(
                home,
                workspace,
                settings.store_url,
                SystemClock(),
                state_key=settings.state_key,
            )
            sys.stdout.write(f"{moved.text('take gateway.store out of it')}\n")
            return 0
        if not to.startswith(("postgresql://", "postgres://")):
            raise ConfigInvalid(
                "--to takes the address of a database (postgresql://…), or `embedded` to leave the one of"
                " gateway.store"
            )
        if settings.store_url is not None:
            raise ConfigInvalid(
                "gateway.store names a database already, and --to moves the queue of the home folder; from"
                " one database to another its own tools move it (pg_dump)"
            )
        moved = to_postgres(home, workspace, to, SystemClock(), state_key=settings.state_key)
        told = moved.text(f'gateway: {{store: "{moved.target}"}}, with the user and the password in it')
    elif settings.store_url is None:
        raise ConfigInvalid(
            "gateway.store names no database: the queue is a file in the home folder, which the first start"
            " makes by itself"
        )
    else:
        told = migrate_store(settings.store_url)
    sys.stdout.write(f"{told}\n")
    return 0
