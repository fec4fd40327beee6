"""An example for every command, shown below its help and in the man page; a test reads each of them."""

from __future__ import annotations

from cyclopts import App

__all__ = ["EXAMPLES", "add_examples", "commands"]

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
    "email release": "squidbot email release",
    "export": "squidbot export @bob:example.org bob@example.org --output /tmp/bob",
    "forget": "squidbot forget @bob:example.org bob@example.org --dry-run",
    "heartbeat log": "squidbot heartbeat log --limit 5",
    "heartbeat now": "squidbot heartbeat now --dry-run",
    "inbox approve": 'squidbot inbox approve d12 --text "Yes, at ten."',
    "inbox drop": "squidbot inbox drop 12",
    "inbox list": "squidbot inbox list --quarantine",
    "inbox reject": 'squidbot inbox reject d12 --why "too long"',
    "inbox release": "squidbot inbox release m12",
    "inbox retry": "squidbot inbox retry 12",
    "inbox show": "squidbot inbox show 12",
    "init": "squidbot init --install user",
    "logs": "squidbot logs --level warning --since 2h --follow",
    "man": "squidbot man | man -l -",
    "matrix devices": "squidbot matrix devices --user @alice:example.org",
    "matrix reset-device": "squidbot matrix reset-device --yes",
    "matrix verify": "squidbot matrix verify --user @alice:example.org",
    "memory diff": "squidbot memory diff owner --older 3 --newer 5",
    "memory history": "squidbot memory history owner",
    "memory list": "squidbot memory list",
    "memory show": "squidbot memory show person:bob@example.org",
    "memory undo": "squidbot memory undo owner --to 3",
    "restore": "squidbot restore squidbot-20260103T140500Z.tar.gz --home /srv/bot --moved",
    "run": "squidbot run --home /var/lib/squidbot",
    "send": 'squidbot send matrix:@alice:example.org "The backup is done."',
    "sessions export": "squidbot sessions export terminal/main --output main.jsonl",
    "sessions list": "squidbot sessions list --limit 20",
    "sessions reindex": "squidbot sessions reindex",
    "sessions reset": "squidbot sessions reset terminal/main --yes",
    "sessions show": "squidbot sessions show terminal/main --limit 50",
    "status": "squidbot status --json",
    "usage": "squidbot usage --days 7",
    "version": "squidbot version --json",
}


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


def add_examples(app: App) -> None:
    """Put its example below the help of each command."""
    for words, sub in commands(app).items():
        if words in EXAMPLES:
            sub.help_epilogue = f"Example: {EXAMPLES[words]}"
