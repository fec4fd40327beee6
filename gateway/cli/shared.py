"""What all commands share: which squidbot is meant, asking it, and telling the answer."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

__all__ = ["HERE", "Json", "Where", "agreed", "ask", "asker", "tell"]


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
    verbose: Annotated[
        bool, Parameter(name=["--verbose", "-v"], help="Also show what is logged meanwhile ($SQUIDBOT_LOG).")
    ] = False


HERE = Where()
Json = Annotated[bool, Parameter(name="--json", help="Answer with JSON.")]


def asker(where: Where) -> Any:
    """Whom to ask."""
    from gateway.cli.ask import Asker
    from gateway.home import Home, find_home

    home = Home(find_home(where.home))
    return Asker(
        home, where.config or home.config_file, must_exist=where.config is not None, verbose=where.verbose
    )


def ask(where: Where, name: str, **arguments: Any) -> dict[str, Any]:
    """Ask one thing."""
    answer: dict[str, Any] = asker(where).call(name, **arguments)
    return answer


def tell(as_json: bool, value: Any, text: str) -> None:  # noqa: FBT001 - what every command was asked for
    """Print the answer, as JSON or in words."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(_json(value, ascii_only=not utf8) if as_json else text)


def _json(value: Any, *, ascii_only: bool) -> str:
    """JSON for pipes and for terminals: what could steer one stands there as an escape, which is the same."""
    text = json.dumps(value, indent=2, ensure_ascii=ascii_only)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return "".join(
        f"\\u{unit:04x}" for unit in memoryview(char.encode("utf-16-le", "surrogatepass")).cast("H")
    )


def agreed(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    if not sys.stdin.isatty():
        print("squidbot: there is nobody to ask; add --yes", file=sys.stderr)
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
