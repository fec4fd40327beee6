"""
Generates the shell completion and the overview that ``squidbot --help`` shows.

Both are made of the commands themselves. The overview is kept as a file, because nobody should wait for it:
reading the help of forty commands takes longer than everything else that a command does.
``python -m gateway.cli.make_pages`` makes it anew; a test compares.

Each command has an example, shown below its help; a test reads each of them.
"""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
from __future__ import annotations

import inspect
import io
import re
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import App

if TYPE_CHECKING:
    from cyclopts import App

OVERVIEW = Path(__file__).with_name("overview.txt")
EXAMPLES = {
    "allow": "squidbot allow carol@example.org",
    "backup": "squidbot backup /srv/backups --encrypt --passphrase-file /etc/squidbot/pass --keep 14",
    "chat": "squidbot chat --session ideas",
    "check": "squidbot check --json",
    "config check": "squidbot config check /etc/squidbot/squidbot.yaml",
    "console": "squidbot console",
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
    "hooks test": "squidbot hooks test grafana",
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
    "import": "squidbot import openclaw ~/.openclaw --now 3f2a9c1d5b7e8a60",
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
    "person list": "squidbot person list",
    "person unlink": "squidbot person unlink bob@example.org",
    "person move": "squidbot person move @bob:old.example @bob:new.example",
    "watch add": "squidbot watch add https://example.org/feed.xml --every 2h",
    "watch list": "squidbot watch list",
    "watch remove": "squidbot watch remove 3f2a",
    "matrix devices": "squidbot matrix devices --user @alice:example.org",
    "matrix login": "squidbot matrix login",
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
    "sessions search": "squidbot sessions search 'locker code' --days 90",
    "sessions show": "squidbot sessions show terminal/main --limit 50",
    "skills add": "squidbot skills add ~/Downloads/pdf-processing.zip",
    "skills check": "squidbot skills check ~/src/skills/pdf-processing",
    "skills list": "squidbot skills list",
    "skills remove": "squidbot skills remove pdf-processing",
    "status": "squidbot status --json",
    "tokens add": "squidbot tokens add phone --for bob@example.org",
    "tokens list": "squidbot tokens list",
    "tokens revoke": "squidbot tokens revoke phone",
    "trust file": "squidbot trust file notes/trip.md",
    "update": "squidbot update --check squidbot_gateway-0.2.0-py3-none-any.whl",
    "usage": "squidbot usage --days 7",
    "version": "squidbot version --json",
}


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """
    Print the completion script for a shell.

    Args:
        shell: bash, zsh or fish.
    """
    from gateway.cli.commands import app

    sys.stdout.write(app.generate_completion(shell=shell))
    return 0


_NEVER_GUESSED = {"forget", "import", "migrate", "restore", "restored"}
"""What erases or replaces something is not offered for a word that is like it."""


def no_such_command(word: str) -> str:
    """The sentence for a first word that is no command, with the nearest one and that of a chat."""
    from gateway.turns.commands import COMMANDS
    from gateway.turns.commands.command_parsing import nearest

    if word in ("-V", "-v", "-version"):
        return "write `squidbot version`"
    if word.startswith("-"):
        return f"{word} stands behind the command, as in `squidbot status {word} …`"
    firsts = get_close_matches(word, sorted({each.split()[0] for each in EXAMPLES} - _NEVER_GUESSED), 1, 0.7)
    meant = firsts or [each for each in EXAMPLES if get_close_matches(word, each.split()[1:], 1, 0.8)]
    meant = [each for each in meant if _NEVER_GUESSED.isdisjoint(each.split())]
    told = [f"Did you mean {' or '.join(f'`squidbot {each}`' for each in meant)}?"] if meant else []
    said = word if word in COMMANDS else nearest(word)
    if said and not firsts:
        told.append(f"In a chat with the bot it is `!{said}`.")
    if word in ("restart", "stop", "start", "reload"):
        told = [f"Its service does that: `systemctl --user {word} squidbot`; `squidbot run` runs it here."]
    return " ".join([f'there is no command "{word}".', *told, "`squidbot help` lists all."])


def overview(app: App) -> str:
    """Return the output of ``squidbot --help`` for a terminal of eighty columns."""
    from rich.console import Console

    commands(app)  # what nobody has called yet has not said what it does
    out = io.StringIO()
    console = Console(file=out, width=80, color_system=None, force_terminal=False)
    app.help_print([], console=console)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"


def write_overview(app: App) -> list[Path]:
    """Regenerate the stored overview; return it if it has changed."""
    text = overview(app)
    if OVERVIEW.exists() and OVERVIEW.read_text(encoding="utf-8") == text:
        return []
    OVERVIEW.write_text(text, encoding="utf-8")
    return [OVERVIEW]


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
