"""How an answer is printed: in words for people, as JSON for programs."""

# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["called_as", "tell"]


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


def called_as(argv0: str, environ: Mapping[str, str]) -> str:
    """
    What a person has to type to call this program again: ``squidbot`` if the shell finds it so, or its path.

    Args:
        argv0: How it was called.
        environ: For the PATH of the shell.
    """
    called = Path(argv0)
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m gateway"
    if called.name != "squidbot":
        return "squidbot"
    found = shutil.which("squidbot", path=environ.get("PATH", ""))
    return "squidbot" if found and Path(found).samefile(called) else shlex.quote(str(called.absolute()))
