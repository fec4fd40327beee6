"""
`squidbot status` on the short way: people and programs ask it often, so it loads only what it needs.
The command line's own library alone takes longer than the question.
"""

# ruff: noqa: PLC0415 - what is needed only then is loaded only then

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Glance", "look", "parse_status"]


@dataclass(frozen=True, slots=True)
class Glance:
    """What was asked: ``status [--home DIR] [--json]``."""

    home: Path | None = None
    as_json: bool = False


def parse_status(arguments: Sequence[str]) -> Glance | None:
    """
    Read ``status [--home DIR] [--json]``.

    Returns:
        None for everything else, which the whole command line must understand.
    """
    if not arguments or arguments[0] != "status":
        return None
    home: Path | None = None
    as_json = False
    rest = list(arguments[1:])
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name == "--json" and not equals and not as_json:
            as_json = True
        elif name == "--home" and home is None:
            if not equals:
                if not rest or rest[0].startswith("-"):
                    return None
                value = rest.pop(0)
            home = Path(value)
        else:
            return None
    return Glance(home, as_json)


def look(asked: Glance) -> int:
    """Print the status; the exit code is 0."""
    from gateway.cli import render
    from gateway.cli.client import Asker
    from gateway.cli.output import tell
    from gateway.system.home import Home, find_home, named_config

    home = Home(find_home(asked.home))
    named = named_config()
    asker = Asker(home, named or home.config_file, must_exist=named is not None)
    report: dict[str, Any] = asker.call("status", reasons=True)
    tell(asked.as_json, report, render.status(report))
    return 0
