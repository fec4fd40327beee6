"""The commands ``squidbot config …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
from pathlib import Path

from cyclopts import App, Parameter

from gateway.cli.command_context import HERE, Json, Where, confirm
from gateway.cli.output import print_result

config = App(
    name="config",
    help="The configuration.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)


@config.command(name="show")
def config_show(*, where: Where = HERE, as_json: Json = False) -> int:
    """Show the settings in effect, with secrets masked, and where each non-default value comes from."""
    from dataclasses import asdict

    from gateway.settings import load_settings
    from gateway.settings.effective import effective, origins, shown_text

    home, file = _place(where)
    settings = load_settings(file, missing_ok=where.config_path is None)
    answer = {
        "file": str(file) if file.exists() else None,
        "home": str(home),
        "settings": effective(settings),
        "origins": {path: asdict(origin) for path, origin in origins(settings).items()},
        "warnings": list(settings.warnings),
    }
    print_result(as_json, answer, shown_text(settings))
    return 0


@config.command(name="schema")
def config_schema() -> int:
    """Print the JSON Schema of the configuration, for editors and other programs."""
    from gateway.settings.json_schema import config_schema as schema

    print(json.dumps(schema(), indent=2, ensure_ascii=False))
    return 0


@config.command(name="example")
def config_example() -> int:
    """Print a configuration with every setting, its meaning and its default."""
    from gateway.settings.example import example_text

    print(example_text(), end="")
    return 0


@config.command(name="check")
def config_check(file: Path | None = None, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Check the configuration and report every problem with its line (exit code 78).

    Args:
        file: The file (default: the configuration of the home folder).
    """
    from gateway.errors import ConfigInvalid
    from gateway.settings import load_settings
    from gateway.settings.last_good import changes
    from gateway.system.home import Home

    home, own = _place(where)
    chosen = file or own
    try:
        settings = load_settings(chosen)
    except ConfigInvalid as error:
        changed = changes(chosen, Home(home).last_good) if file is None else []
        answer = {"ok": False, "file": str(chosen), "text": str(error), "changed_since_good": changed}
        print_result(as_json, answer, "\n".join([str(error), *last_good_hint(changed)]))
        return error.exit_code
    missing = ["no channel is on"] * (not settings.channels.enabled())
    missing += ["the built-in demo model answers"] * (not settings.llm.models)
    said = (
        f"has no mistake, but {' and '.join(missing)}. `squidbot init` sets it up." if missing else "is fine"
    )
    text = "\n".join([f"{chosen} {said}", *(f"warning: {one}" for one in settings.warnings)])
    print_result(
        as_json, {"ok": True, "file": str(chosen), "text": text, "warnings": list(settings.warnings)}, text
    )
    return 0


@config.command(name="restore")
def config_restore(*, yes: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Restore the configuration with which the daemon last started; the present one is kept beside it.

    Args:
        yes: Do not ask.
    """
    from datetime import UTC, datetime

    from gateway.settings.last_good import changes, require_last_good, restore
    from gateway.system.home import Home

    home, file = _place(where)
    kept = Home(home).last_good
    require_last_good(kept)
    for line in changes(file, kept) if not yes and not as_json else ():
        print(line)
    if not yes and not confirm(f"Put {kept} back as {file}?"):
        return 1
    done = restore(file, kept, now=datetime.now(UTC))
    answer = {"file": str(done.config), "kept_as": str(done.broken) if done.broken else None}
    kept_as = f"; what was there is kept as {done.broken}" if done.broken else ""
    print_result(as_json, answer, f"{done.config} is as it was when squidbot last started{kept_as}")
    return 0


def last_good_hint(changed: list[str]) -> list[str]:
    """The text below the problems of a configuration that worked once."""
    if not changed:
        return []
    return [
        "changed since squidbot last started with it:",
        *(f"  {line}" for line in changed),
        "to go back to what worked: squidbot config restore (keeps the present file)",
    ]


def _place(where: Where) -> tuple[Path, Path]:
    from gateway.system.home import Home, find_home

    home = find_home(where.home)
    return home, where.config_path or Home(home).config_file
