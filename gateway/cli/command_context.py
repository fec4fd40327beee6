"""What all commands share: the options --home and --config, the request to the gateway, and the output."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from gateway.system.home import named_config


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """The options that name a home and a configuration."""

    home: Annotated[
        Path | None, Parameter(help="The home folder (default: $SQUIDBOT_HOME, else ~/.squidbot).")
    ] = None
    config: Annotated[
        Path | None,
        Parameter(help="The configuration (default: $SQUIDBOT_CONFIG, else squidbot.yaml in the home)."),
    ] = None
    verbose: Annotated[
        bool, Parameter(name=["--verbose", "-v"], help="Also show what is logged meanwhile ($SQUIDBOT_LOG).")
    ] = False

    @property
    def config_path(self) -> Path | None:
        """The configuration that somebody has named, here or in the environment."""
        return named_config(self.config)


HERE = Where()
Json = Annotated[bool, Parameter(name="--json", help="Print JSON.")]


def asker(where: Where) -> Any:
    """The target of operations that these options name."""
    from gateway.cli import operations_client

    return operations_client.asker(where.home, where.config_path, verbose=where.verbose)


def ask(where: Where, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Call one operation."""
    answer: dict[str, Any] = asker(where).call(name, **arguments)
    return answer


def confirm(question: str) -> bool:
    """Ask the person at the terminal and return True for a yes."""
    if not sys.stdin.isatty():
        print("squidbot: there is nobody to ask; add --yes", file=sys.stderr)
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
