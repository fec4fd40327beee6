"""
The commands and their help, which is made of their signatures and docstrings.

Annotations are looked at when the commands are registered, so what they name is imported here; everything
else is imported by the command that needs it.
"""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: D417 - what all commands share is told in one place

from __future__ import annotations

import sys
from pathlib import Path

from cyclopts import App, Parameter

from gateway.cli.inbox import inbox
from gateway.cli.memory import memory
from gateway.cli.sessions import sessions
from gateway.cli.shared import HERE, Json, Where, ask, tell
from gateway.version import version, version_of

__all__ = ["app"]


app = App(
    name="squidbot",
    help="Your assistant in Matrix rooms, by email and on a timer.",
    version=version,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)
for _group in (inbox, sessions, memory):
    app.command(_group)


# ── running ──


@app.command
def run(*, where: Where = HERE) -> int:
    """Run the daemon until it is told to stop (SIGTERM, Ctrl-C); a second signal ends it at once."""
    from gateway.cli.running import run as run_here

    return run_here(where.home, where.config)


@app.command
def demo(*, keep: Path | None = None, tour: bool = False) -> int:
    """
    Talk to the bot through a real Matrix server and a real mail server on this machine.

    Args:
        keep: Use this folder and leave it afterwards.
        tour: Show the main things without asking.
    """
    from gateway.demo import run_demo

    return run_demo(keep=keep, tour=tour)


@app.command
def check(*, where: Where = HERE, as_json: Json = False) -> int:
    """Test the configuration, the home folder, the logins and the model, and say what is wrong."""
    from gateway.doctor import check as examine
    from gateway.home import Home, find_home
    from gateway.logs import configure_logs

    configure_logs("error", quiet=True)  # the report says it in words
    home = Home(find_home(where.home))
    report = examine(home, where.config or home.config_file)
    tell(as_json, report.as_dict(), report.as_text())
    return report.exit_code


@app.command
def chat(*, session: str = "main", where: Where = HERE) -> int:
    """
    Talk with the assistant in this terminal.

    Args:
        session: The name of the conversation.
    """
    from gateway.chat import run_chat
    from gateway.home import Home, find_home, open_home
    from gateway.settings import load_settings

    root = find_home(where.home)
    settings = load_settings(where.config or Home(root).config_file, missing_ok=where.config is None)
    return run_chat(settings, open_home(root), session=session)


@app.command
def status(*, where: Where = HERE, as_json: Json = False) -> int:
    """Show the channels, the queue, and what is stuck."""
    from gateway.cli import show

    report = ask(where, "status", reasons=True)
    tell(as_json, report, show.status(report))
    return 0


@app.command
def usage(*, days: int = 30, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show what was spent on models, by purpose and by day.

    Args:
        days: So many days back.
    """
    from gateway.cli import show

    answer = ask(where, "usage", days=days)
    tell(as_json, answer, show.usage(answer))
    return 0


@app.command(name="version")
def show_version(*, as_json: Json = False) -> int:
    """Show the version, and those of the main libraries."""
    names = ("aiohttp", "aioimaplib", "aiosmtplib", "anyio", "litellm", "matrix-nio", "pydantic", "structlog")
    python = ".".join(str(part) for part in sys.version_info[:3])
    libraries = {"python": python, **{name: version_of(name) for name in names}}
    lines = [f"squidbot {version()}", *(f"  {name} {number}" for name, number in libraries.items())]
    tell(as_json, {"version": version(), "libraries": libraries}, "\n".join(lines))
    return 0
