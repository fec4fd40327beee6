"""
The commands and their help, which is made of their signatures and docstrings.

Annotations are looked at when the commands are registered, so what they name is imported here; everything
else is imported by the command that needs it.
"""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: D417 - what all commands share is told in one place
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from gateway.version import version, version_of

__all__ = ["app"]


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """Which squidbot is meant."""

    home: Annotated[
        Path | None, Parameter(help="The home folder (default: $SQUIDBOT_HOME, else ~/.squidbot).")
    ] = None
    config: Annotated[
        Path | None, Parameter(help="The configuration (default: squidbot.yaml in the home).")
    ] = None


_HERE = Where()
_Json = Annotated[bool, Parameter(name="--json", help="Answer with JSON.")]

app = App(
    name="squidbot",
    help="Your assistant in Matrix rooms, by email and on a timer.",
    version=version,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)
inbox = App(name="inbox", help="Every message that was accepted: where it is and what became of it.")
sessions = App(name="sessions", help="Conversations.")
memory = App(name="memory", help="What the assistant remembers, and every earlier version.")
for _group in (inbox, sessions, memory):
    app.command(_group)


# ── running ──


@app.command
def run(*, where: Where = _HERE) -> int:
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
def check(*, where: Where = _HERE, as_json: _Json = False) -> int:
    """Test the configuration, the home folder, the logins and the model, and say what is wrong."""
    from gateway.doctor import check as examine
    from gateway.home import Home, find_home
    from gateway.logs import configure_logs

    configure_logs("error", quiet=True)  # the report says it in words
    home = Home(find_home(where.home))
    report = examine(home, where.config or home.config_file)
    _print(as_json, report.as_dict(), report.as_text())
    return report.exit_code


@app.command
def chat(*, session: str = "main", where: Where = _HERE) -> int:
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
def status(*, where: Where = _HERE, as_json: _Json = False) -> int:
    """Show the channels, the queue, and what is stuck."""
    from gateway.cli import show

    report = _ask(where, "status", reasons=True)
    _print(as_json, report, show.status(report))
    return 0


@app.command
def usage(*, days: int = 30, where: Where = _HERE, as_json: _Json = False) -> int:
    """
    Show what was spent on models, by purpose and by day.

    Args:
        days: So many days back.
    """
    from gateway.cli import show

    answer = _ask(where, "usage", days=days)
    _print(as_json, answer, show.usage(answer))
    return 0


@app.command(name="version")
def show_version(*, as_json: _Json = False) -> int:
    """Show the version, and those of the main libraries."""
    names = ("aiohttp", "aioimaplib", "aiosmtplib", "anyio", "litellm", "matrix-nio", "pydantic", "structlog")
    python = ".".join(str(part) for part in sys.version_info[:3])
    libraries = {"python": python, **{name: version_of(name) for name in names}}
    lines = [f"squidbot {version()}", *(f"  {name} {number}" for name, number in libraries.items())]
    _print(as_json, {"version": version(), "libraries": libraries}, "\n".join(lines))
    return 0


# ── messages ──


@inbox.command(name="list")
def inbox_list(
    *,
    state: list[str] | None = None,
    session: str | None = None,
    limit: int = 50,
    where: Where = _HERE,
    as_json: _Json = False,
) -> int:
    """
    List messages, newest first.

    Args:
        state: Only these: ready, running, answered, settled, dead, ignored (default: all but ignored).
        session: Only of this session.
        limit: At most so many.
    """
    from gateway.cli import show

    answer = _ask(where, "inbox_list", states=state, session=session, limit=limit)
    _print(as_json, answer, show.inbox_rows(answer["rows"]))
    return 0


@inbox.command(name="show")
def inbox_show(number: int, /, *, where: Where = _HERE, as_json: _Json = False) -> int:
    """
    Show a message and what was sent for it.

    Args:
        number: Its ID, as the list shows it.
    """
    from gateway.cli import show

    answer = _ask(where, "inbox_show", id=number)
    _print(as_json, answer, show.inbox_row(answer))
    return 0


@inbox.command(name="retry")
def inbox_retry(number: int, /, *, where: Where = _HERE, as_json: _Json = False) -> int:
    """
    Try a message that failed once more.

    Args:
        number: Its ID.
    """
    answer = _ask(where, "inbox_retry", id=number)
    told = "is tried again" if answer["changed"] else "has not failed, so there is nothing to try again"
    _print(as_json, answer, f"message {number} {told}")
    return 0 if answer["changed"] else 1


@inbox.command(name="drop")
def inbox_drop(number: int, /, *, where: Where = _HERE, as_json: _Json = False) -> int:
    """
    Give a message up: it is not answered, and what was to be sent for it is not sent.

    Args:
        number: Its ID.
    """
    answer = _ask(where, "inbox_drop", id=number)
    told = "is given up" if answer["changed"] else "is being answered or was answered; nothing to give up"
    _print(as_json, answer, f"message {number} {told}")
    return 0 if answer["changed"] else 1


# ── sessions ──


@sessions.command(name="list")
def sessions_list(*, limit: int = 200, where: Where = _HERE, as_json: _Json = False) -> int:
    """
    List conversations, the one spoken in last first.

    Args:
        limit: At most so many.
    """
    from gateway.cli import show

    answer = _ask(where, "sessions_list", limit=limit)
    _print(as_json, answer, show.sessions(answer))
    return 0


@sessions.command(name="show")
def sessions_show(session: str, /, *, limit: int = 20, where: Where = _HERE, as_json: _Json = False) -> int:
    """
    Show the newest messages of a conversation, its summary, what its next prompt holds, and what waits.

    Args:
        session: Its name, as the list shows it.
        limit: At most so many messages.
    """
    from gateway.cli import show

    answer = _ask(where, "sessions_show", session=session, limit=limit)
    _print(as_json, answer, show.session(answer))
    return 0


@sessions.command(name="export")
def sessions_export(session: str, /, *, output: Path | None = None, where: Where = _HERE) -> int:
    """
    Write a whole conversation as lines of JSON.

    Args:
        session: Its name, as the list shows it.
        output: A file, which must not exist yet (default: the standard output).
    """
    from gateway.cli.export import export_session

    count = export_session(_asker(where).call, session, output)
    if output is not None:
        print(f"{count} messages written to {output}")
    return 0


@sessions.command(name="reindex")
def sessions_reindex(*, where: Where = _HERE, as_json: _Json = False) -> int:
    """Make the index, in which the assistant searches what was said, anew from the histories."""
    from gateway.cli import show

    answer = _ask(where, "sessions_reindex")
    _print(as_json, answer, show.reindexed(answer))
    return 0


@sessions.command(name="reset")
def sessions_reset(
    session: str, /, *, yes: bool = False, where: Where = _HERE, as_json: _Json = False
) -> int:
    """
    Let a conversation begin anew. The file of its history stays; memories that were saved stay, too.

    Args:
        session: Its name, as the list shows it.
        yes: Do not ask.
    """
    if not yes and not _agreed(f"Let {session} begin anew, and drop what waits in it?"):
        print("nothing was changed", file=sys.stderr)
        return 1
    answer = _ask(where, "sessions_reset", session=session)
    _print(as_json, answer, f"{session} begins anew")
    return 0


# ── memory ──

_Scope = Annotated[str, Parameter(help="Whose: owner, person:ADDRESS or room:SESSION.")]


@memory.command(name="show")
def memory_show(scope: _Scope = "owner", /, *, where: Where = _HERE, as_json: _Json = False) -> int:
    """Show a memory document."""
    from gateway.plain import plain_text

    answer = _ask(where, "memory_show", scope=scope)
    _print(as_json, answer, plain_text(answer["text"]) or "this memory is empty")
    return 0


@memory.command(name="history")
def memory_history(scope: _Scope = "owner", /, *, where: Where = _HERE, as_json: _Json = False) -> int:
    """Show what was written to a memory document, version by version."""
    from gateway.cli import show

    answer = _ask(where, "memory_history", scope=scope)
    _print(as_json, answer, show.memory_versions(answer))
    return 0


@memory.command(name="diff")
def memory_diff(
    scope: _Scope = "owner",
    /,
    *,
    older: int | None = None,
    newer: int | None = None,
    where: Where = _HERE,
    as_json: _Json = False,
) -> int:
    """
    Show what changed between two versions of a memory document.

    Args:
        older: The one version (default: the one before the other).
        newer: The other one (default: the current one).
    """
    from gateway.cli import show

    answer = _ask(where, "memory_diff", scope=scope, older=older, newer=newer)
    _print(as_json, answer, show.memory_diff(answer))
    return 0


@memory.command(name="undo")
def memory_undo(
    scope: _Scope = "owner", /, *, to: int | None = None, where: Where = _HERE, as_json: _Json = False
) -> int:
    """
    Bring an earlier version of a memory document back, as a new version.

    Args:
        to: The version (default: the one before the current one).
    """
    answer = _ask(where, "memory_undo", scope=scope, to=to)
    told = f"version {answer['restored']} is back" if answer["restored"] else "the memory is empty again"
    _print(as_json, answer, f"{told}, as version {answer['version']}")
    return 0


# ── what they share ──


def _asker(where: Where) -> Any:
    from gateway.cli.ask import Asker
    from gateway.home import Home, find_home

    home = Home(find_home(where.home))
    return Asker(home, where.config or home.config_file)


def _ask(where: Where, name: str, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = _asker(where).call(name, **arguments)
    return answer


def _print(as_json: bool, value: Any, text: str) -> None:  # noqa: FBT001 - what every command was asked for
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, indent=2, ensure_ascii=not utf8) if as_json else text)


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        print("squidbot: there is nobody to ask; add --yes", file=sys.stderr)
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
