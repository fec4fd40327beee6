"""
The commands and their help, which is made of their signatures and docstrings. Annotations are looked at when
the commands are registered, so what they name is imported here; everything else, other files' commands among
it, is imported by the command that needs it.
"""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from cyclopts import App, Parameter

from gateway.cli import fast_path
from gateway.cli.command_context import HERE, Json, Where, asker
from gateway.cli.output import print_result
from gateway.operations.operation_registry import COMMANDS
from gateway.system.home import named_config
from gateway.system.version import version, version_of


def _default(value: object) -> str | None:
    """A default as the help shows it; that nothing is set needs no words."""
    return None if value in (None, False, "", ()) else str(value)


app = App(
    name="squidbot",
    help="Your assistant in Matrix rooms, by email and on a timer.",
    version=version,
    help_format="plaintext",
    default_parameter=Parameter(negative=(), show_default=_default),
)
_OWN_KINDS = ("email", "matrix")
"""Our own kinds of channel; those of other packages are added when one is named (`add_kind`)."""
_WRITTEN_BY_HAND = {path.stem for path in Path(__file__).parent.glob("*.py")}
"""The modules of groups with commands that are more than one request are among these."""
_DERIVED = (*COMMANDS, *_OWN_KINDS)
for _place in (
    "backup:backup",
    "backup:restore",
    "config:config",
    "hooks:hooks",
    "init:init",
    "logs:logs",
    "manual:completion",
    "privacy:export",
    "privacy:forget",
    "restored:restored",
    "update:update",
    *(f"{name if name in _WRITTEN_BY_HAND else 'generated_commands'}:{name}" for name in _DERIVED),
):
    app.command(f"gateway.cli.{_place}")  # imported when it is called


def add_kind(arguments: Sequence[str]) -> None:
    """Add the commands of a channel of another package, if the first word names one that is enabled."""
    from gateway.cli.generated_commands import make_group
    from gateway.errors import GatewayError
    from gateway.plugins import channel_kinds
    from gateway.settings import load_settings
    from gateway.system.home import Home, find_home

    kind, *rest = arguments
    given = dict(each.split("=", 1) for each in rest if each.startswith("--") and "=" in each)
    given |= dict(pairwise(rest))
    home, config = (Path(given[name]) if name in given else None for name in ("--home", "--config"))
    with suppress(GatewayError):
        load_settings(named_config(config) or Home(find_home(home)).config_file, missing_ok=True)
    if kind in channel_kinds():
        app.command(make_group(kind))


# ── running ──


@app.command
def run(*, where: Where = HERE) -> int:
    """Run the daemon until SIGTERM or Ctrl-C; a second signal ends it at once."""
    return fast_path.run(home=where.home, config=where.config, verbose=where.verbose)


@app.command
def demo(*, keep: Path | None = None, tour: bool = False) -> int:
    """
    Talk to the bot through a real Matrix server and a real mail server on this machine.

    Args:
        keep: Use this folder and keep it; the next demo with the same folder continues.
        tour: Show the main features without asking.
    """
    from gateway.cli.demo import run_demo

    return run_demo(keep=keep, tour=tour)


@app.command(alias="doctor")
def check(*, data: bool = False, repair: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Check the configuration, the home folder, the servers, the logins and the models.

    Exit codes: 0, no problem; 1, a problem; 78, the configuration is invalid.

    Args:
        data: Check the stored data (histories, memory, database, files) for damage instead.
        repair: With --data: repair what can be repaired, after making a copy; the daemon must be stopped.
    """
    from gateway.cli.check.all_checks import check as examine
    from gateway.cli.check.all_checks import check_data
    from gateway.cli.output import LOG_VARIABLE
    from gateway.observability.logs import configure_logs
    from gateway.operations.operation_arguments import RequestInvalid
    from gateway.system.home import Home, find_home

    if repair and not data:
        raise RequestInvalid("--repair needs --data")
    shown = where.verbose or LOG_VARIABLE in os.environ
    configure_logs("info" if shown else "error", quiet=not shown)  # the report says it in words
    home = Home(find_home(where.home))
    config = where.config_path or home.config_file
    report = check_data(home, config, repair=repair) if data else examine(home, config)
    print_result(as_json, report.as_dict(), report.as_text())
    return report.exit_code


@app.command
def migrate(*, to: str | None = None, where: Where = HERE) -> int:
    """
    Create squidbot's tables in the PostgreSQL database of gateway.store, or move the home's queue into one.

    A move takes histories, memory and logins along. The daemon must be stopped. Run the command again to
    resume an interrupted move.

    Args:
        to: Move everything there: postgresql://… (with the password in ~/.pgpass).
    """
    from gateway.cli.output import quiet_logs
    from gateway.errors import ConfigInvalid
    from gateway.settings import load_settings
    from gateway.store.opening import migrate_store
    from gateway.system.clock import SystemClock
    from gateway.system.home import Home, find_home

    quiet_logs(verbose=where.verbose)
    home = Home(find_home(where.home))
    settings = load_settings(where.config_path or home.config_file)
    if to is None:
        if settings.store_url is None:
            raise ConfigInvalid(
                "gateway.store names no database: the queue is a file in the home folder, which the first"
                " start makes by itself"
            )
        told = migrate_store(settings.store_url)
    elif not to.startswith(("postgresql://", "postgres://")):
        raise ConfigInvalid("--to takes the address of a database (postgresql://…)")
    elif settings.store_url is not None:
        raise ConfigInvalid(
            "gateway.store names a database already, and --to moves the queue of the home folder; from one"
            " database to another its own tools move it (pg_dump)"
        )
    else:
        from gateway.operations.migration.migrate_operation import to_postgres

        workspace = home.path(settings.agents.workspace)
        told = to_postgres(home, workspace, to, SystemClock(), state_key=settings.state_key).text()
    sys.stdout.write(f"{told}\n")
    return 0


@app.command
def chat(*, session: str = "main", where: Where = HERE) -> int:
    """
    Chat with the assistant in this terminal.

    Args:
        session: The name of the conversation.
    """
    from agent_core.messages import SessionKey
    from gateway.cli.chat import run_chat
    from gateway.operations.operation_arguments import RequestInvalid
    from gateway.settings import load_settings
    from gateway.store.model import is_too_long
    from gateway.system.home import Home, find_home
    from gateway.system.restore_marker import check_no_restore_pending

    if not session.strip():
        raise RequestInvalid("--session needs a name, such as main")
    if is_too_long(SessionKey("terminal", session)):
        raise RequestInvalid("--session needs a shorter name")
    root = find_home(where.home)
    check_no_restore_pending(root)
    settings = load_settings(
        where.config_path or Home(root).config_file, missing_ok=where.config_path is None
    )
    return run_chat(settings, Home(root), session=session)


@app.command
def status(*, watch: bool = False, cluster: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show the channels, the queue, and what is stuck.

    Args:
        watch: Keep showing it until q or Ctrl-C.
        cluster: List all homes on the PostgreSQL server instead, each with its machines.
    """
    if cluster:
        return _cluster(where, watch=watch, as_json=as_json)
    if watch:
        from gateway.cli.watch_status import watch as look_on
        from gateway.operations import render

        asked = asker(where)
        return look_on(lambda: render.status(asked.call("status", reasons=True)))
    return fast_path.status(home=where.home, config=where.config, verbose=where.verbose, as_json=as_json)


def _cluster(where: Where, *, watch: bool, as_json: bool) -> int:
    """Show the homes of a server, once or until q."""
    from gateway.cli.operations_client import homes_on_server
    from gateway.cli.watch_status import watch as look_on
    from gateway.operations import render

    if watch:
        return look_on(lambda: render.cluster(homes_on_server(where.home, where.config_path)))
    homes = homes_on_server(where.home, where.config_path)
    print_result(as_json, {"homes": homes}, render.cluster(homes))
    return 0


@app.command(name="version")
def show_version(*, as_json: Json = False) -> int:
    """Show the versions of squidbot and its main libraries."""
    names = ("aiohttp", "aioimaplib", "aiosmtplib", "anyio", "litellm", "matrix-nio", "pydantic", "structlog")
    python = ".".join(str(part) for part in sys.version_info[:3])
    libraries = {"python": python, **{name: version_of(name) for name in names}}
    lines = [f"squidbot {version()}", *(f"  {name} {number}" for name, number in libraries.items())]
    print_result(as_json, {"version": version(), "libraries": libraries}, "\n".join(lines))
    return 0
