"""
Generates the man page, the shell completion, and the overview that ``squidbot --help`` shows.

All are made of the commands themselves. Man page and overview are kept as files, because an installed package
needs the page and nobody should wait for the overview: reading the help of forty commands takes longer than
everything else that a command does. ``python -m gateway.cli.make_pages`` makes them anew; a test compares.

Each command has an example, shown below its help and in the man page; a test reads each of them.
"""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
from __future__ import annotations

import inspect
import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import App

if TYPE_CHECKING:
    from cyclopts import App

OVERVIEW = Path(__file__).with_name("overview.txt")
MAN_PAGE = Path(__file__).parents[2] / "deploy" / "man" / "squidbot.1"
_COMMON = ("--home", "--config", "--json", "--verbose")
_HEAD = r"""\
.\" Made of the commands' help by python -m gateway.cli.make_pages.
.TH SQUIDBOT 1 "" "squidbot" "User Commands"
.SH NAME
squidbot \- your assistant in Matrix rooms, by email and on a timer
.SH SYNOPSIS
.B squidbot
.I COMMAND
[\fIOPTIONS\fR]
.SH DESCRIPTION
squidbot connects the assistant of one person, or of one small group, to the places where they already talk.
.B squidbot run
is the daemon; the other commands ask it over a socket in its home folder, or work on that folder when no
daemon runs.
.SH OPTIONS
Every command accepts these where they apply:
.TP
.BI \-\-home " DIR"
The home folder (default: $SQUIDBOT_HOME, else ~/.squidbot).
.TP
.BI \-\-config " FILE"
The configuration (default: $SQUIDBOT_CONFIG, else squidbot.yaml in the home).
.TP
.B \-\-json
Print JSON.
.TP
.BR \-\-verbose ", " \-v
Also show log lines on stderr; without it, only errors.
.TP
.B \-\-help
Show help for a command.
.TP
.B \-\-version
Show the version.
.SH COMMANDS
"""
_TAIL = r"""\
.SH EXIT STATUS
0: success. 1: it failed, or something is wrong. 2: wrong usage. 65: a damaged backup, or no backup. 73: the
output exists already or cannot be created. 74: the disk or the home folder must be repaired. 75: not now, try
again. 77: the passphrase of a backup is missing or wrong. 78: the configuration must be corrected, or another
squidbot runs on this home.
.SH ENVIRONMENT
.TP
.B SQUIDBOT_HOME
The home folder.
.TP
.B SQUIDBOT_CONFIG
The configuration.
.TP
.B SQUIDBOT_INIT_\fIOPTION\fR
Answers for
.BR init ,
by the names of its options.
.TP
.B SQUIDBOT_BACKUP_PASSPHRASE
The passphrase of encrypted backups.
.TP
.B SQUIDBOT_LOG
From which level on commands show what they log: debug, info, warning or error.
.SH FILES
.TP
.I ~/.squidbot/squidbot.yaml
The configuration.
.TP
.I ~/.squidbot/sessions
The histories of all conversations.
"""
EXAMPLES = {
    "backup": "squidbot backup /srv/backups --encrypt --passphrase-file /etc/squidbot/pass --keep 14",
    "chat": "squidbot chat --session ideas",
    "check": "squidbot check --json",
    "config check": "squidbot config check /etc/squidbot/squidbot.yaml",
    "config example": "squidbot config example > squidbot.yaml",
    "config restore": "squidbot config restore --yes",
    "config schema": "squidbot config schema > squidbot.schema.json",
    "config show": "squidbot config show --json",
    "completion": "squidbot completion bash > /etc/bash_completion.d/squidbot",
    "cron add": 'squidbot cron add "water the plants" --cron "0 9 * * 6"',
    "cron list": "squidbot cron list --all",
    "cron pause": "squidbot cron pause 3f2a",
    "cron remove": "squidbot cron remove 3f2a",
    "cron resume": "squidbot cron resume 3f2a",
    "cron run": "squidbot cron run 3f2a",
    "demo": "squidbot demo --tour",
    "email login": "squidbot email login --account work",
    "email reset-breaker": "squidbot email reset-breaker",
    "export": "squidbot export @bob:example.org bob@example.org --output /tmp/bob",
    "files diff": "squidbot files diff 12",
    "files history": "squidbot files history notes/plan.md --limit 5",
    "files undo": "squidbot files undo 12",
    "forget": "squidbot forget @bob:example.org bob@example.org --dry-run",
    "grants list": "squidbot grants list",
    "grants revoke": "squidbot grants revoke g1a2b3c",
    "heartbeat log": "squidbot heartbeat log --limit 5",
    "heartbeat now": "squidbot heartbeat now --dry-run",
    "inbox approve": 'squidbot inbox approve d12 --text "Yes, at ten."',
    "inbox drop": "squidbot inbox drop 12",
    "inbox list": "squidbot inbox list --quarantine",
    "inbox answer": "squidbot inbox answer a3f2c9 Berlin",
    "inbox reject": 'squidbot inbox reject d12 --why "too long"',
    "inbox release": "squidbot inbox release m12",
    "inbox retry": "squidbot inbox retry 12",
    "inbox show": "squidbot inbox show 12",
    "jobs list": "squidbot jobs list --open",
    "jobs show": "squidbot jobs show k3f9ta",
    "jobs stop": "squidbot jobs stop k3f9ta",
    "init": "squidbot init --install user",
    "logs": "squidbot logs --level warning --since 2h --follow",
    "did": "squidbot did --since 2d",
    "man": "squidbot man | man -l -",
    "matrix devices": "squidbot matrix devices --user @alice:example.org",
    "matrix reset-device": "squidbot matrix reset-device --yes",
    "matrix verify": "squidbot matrix verify --user @alice:example.org",
    "mcp approve": "squidbot mcp approve house get_state set_state",
    "mcp call": "squidbot mcp call clock get_current_time",
    "mcp list": "squidbot mcp list",
    "mcp login": "squidbot mcp login calendar",
    "mcp logout": "squidbot mcp logout calendar",
    "mcp logs": "squidbot mcp logs house",
    "mcp tools": "squidbot mcp tools house --refresh",
    "memory diff": "squidbot memory diff owner --older 3 --newer 5",
    "memory history": "squidbot memory history owner",
    "memory list": "squidbot memory list",
    "memory show": "squidbot memory show person:bob@example.org",
    "memory undo": "squidbot memory undo owner --to 3",
    "memory write": "squidbot memory write owner --version 3",
    "migrate": "squidbot migrate --to postgresql://squidbot@db.example/squidbot",
    "restored": "squidbot restored --until 2026-01-03T14:05",
    "restore": "squidbot restore squidbot-20260103T140500Z.tar.gz --home /srv/bot --moved",
    "run": "squidbot run --home /var/lib/squidbot",
    "send": 'squidbot send matrix:@alice:example.org "The backup is done."',
    "sessions export": "squidbot sessions export terminal/main --output main.jsonl",
    "sessions list": "squidbot sessions list --limit 20",
    "sessions reindex": "squidbot sessions reindex",
    "sessions reset": "squidbot sessions reset terminal/main --yes",
    "sessions show": "squidbot sessions show terminal/main --limit 50",
    "status": "squidbot status --json",
    "trust file": "squidbot trust file notes/trip.md",
    "usage": "squidbot usage --days 7",
    "version": "squidbot version --json",
}


def man() -> int:
    """Print the manual page."""
    from gateway.cli.commands import app

    sys.stdout.write(man_page(app))
    return 0


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """
    Print the completion script for a shell.

    Args:
        shell: bash, zsh or fish.
    """
    from gateway.cli.commands import app

    sys.stdout.write(app.generate_completion(shell=shell))
    return 0


def overview(app: App) -> str:
    """What ``squidbot --help`` says, for a terminal of eighty columns."""
    from rich.console import Console

    commands(app)  # what nobody has called yet has not said what it does
    out = io.StringIO()
    console = Console(file=out, width=80, color_system=None, force_terminal=False)
    app.help_print([], console=console)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"


def man_page(app: App) -> str:
    """The manual page, as roff with the macros of man(7)."""
    parts = [_HEAD.removeprefix("\\\n")]
    for words, sub in sorted(commands(app).items()):
        parts.append(_section(words, sub))
    return "".join([*parts, _TAIL.removeprefix("\\\n")])


def _section(words: str, sub: App) -> str:
    arguments = [
        one
        for one in sub.assemble_argument_collection(parse_docstring=True)
        if one.names[0] != "*" and one.names[0] not in _COMMON
    ]
    places = " ".join(f"\\fI{_roff(one.names[0])}\\fR" for one in arguments if _is_place(one.names[0]))
    about = re.split(r"\n[^\S\n]*Args:", sub.help or "", maxsplit=1)[0]
    lines = [f'.SS "squidbot {_roff(words)}"', f".B squidbot {_roff(words)}"]
    lines += [places] if places else []
    lines += ["[\\fIOPTIONS\\fR]"] if len(arguments) > len(places.split()) else []
    for number, paragraph in enumerate(re.split(r"\n\s*\n", about.strip())):
        lines += [".PP" if number or lines else "", _roff(" ".join(paragraph.split()))]
    for one in arguments:
        told = _roff(" ".join((one.parameter.help or "").split())) or "\\&"
        lines += [".TP", f".B {_roff(one.names[0])}", told]
    if words in EXAMPLES:
        lines += [".PP", "Example:", ".PP", ".RS 4", ".nf", _roff(EXAMPLES[words]), ".fi", ".RE"]
    return "\n".join(lines) + "\n"


def _is_place(name: str) -> bool:
    return not name.startswith("-")


def _roff(text: str) -> str:
    """Plain text that means nothing to roff; beyond ASCII, characters by their numbers."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(char if ord(char) < 128 else f"\\[u{ord(char):04X}]" for char in text)
    return f"\\&{text}" if text.startswith((".", "'")) else text


def write_pages(app: App) -> list[Path]:
    """Write the two files anew; returns those that have changed."""
    changed = []
    MAN_PAGE.parent.mkdir(exist_ok=True)
    for path, text in ((OVERVIEW, overview(app)), (MAN_PAGE, man_page(app))):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def commands(app: App, path: tuple[str, ...] = ()) -> dict[str, App]:
    """Every command that does something, by its words; one with two names by the first."""
    found: dict[str, App] = {}
    for name in app:
        if name.startswith("-"):
            continue
        sub = app[name]
        if any(sub is known for known in found.values()):
            continue
        inner = commands(sub, (*path, name))
        found |= inner or {" ".join((*path, name)): sub}
    return found


def _unwrapped(doc: str) -> str:
    """A docstring with a line for each paragraph and each argument."""
    return re.sub(r"(?<!\n)\n(?=\S)|\n {8,}(?=\S)", " ", inspect.cleandoc(doc))


def add_examples(app: App) -> None:
    """Put its example below the help of each command; the width of the terminal alone breaks its lines."""
    for words, sub in commands(app).items():
        if sub.default_command is not None:
            sub.default_command.__doc__ = _unwrapped(sub.default_command.__doc__ or "")
        if words in EXAMPLES:
            sub.help_epilogue = f"Example: {EXAMPLES[words]}"
