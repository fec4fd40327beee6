"""
Operations on the configuration and the log of the running daemon, and the check of both. Secrets are masked
in all that is shown. A line of the configuration with a masked part carries the number of the line, and stays
as it is in the file when the text is saved.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread

from agent_core import files
from agent_core.operation import operation
from gateway.errors import ConfigInvalid, GatewayError, NotFound, StateUnusable
from gateway.observability.logs.log_lines import LEVELS, LineFilter, format_line, parse_line
from gateway.observability.logs.log_reader import from_journal, newest_lines
from gateway.observability.redaction import MASK
from gateway.operations.operation_arguments import RequestInvalid, capped_limit
from gateway.operations.operation_context import OperationContext
from gateway.settings import Settings
from gateway.settings.effective import shown_text
from gateway.settings.last_good import changes, restore, shown_lines, validate_text
from gateway.system.home import Home

CHECK_LIMIT_S = 120.0
_KEPT = re.compile(r"  # kept as line ([0-9]{1,7})$")


@operation("settings show", writes=False)
async def show_settings(context: OperationContext) -> dict[str, Any]:
    """The settings in effect, the file as it may be shown, and what was changed since the last start."""
    settings, home, file = _placed(context)
    return await anyio.to_thread.run_sync(_show, settings, home, file)


@operation("settings write", writes=True, done="Looked at.")
async def write_settings(
    context: OperationContext, text: str, version: str, *, save: bool = False
) -> dict[str, Any]:
    """
    Check a new text of the configuration, and ``save`` it if it has no problems.

    Raises:
        RequestInvalid: The file is not at ``version`` any more, or a masked line was edited.
    """
    _, _, file = _placed(context)
    problems = await anyio.to_thread.run_sync(_write, file, text, version, save)
    return {"text": text, "saved": save and not problems, "problems": problems}


@operation(
    "settings restore",
    writes=True,
    done="The configuration of the last start is back; the other one is kept beside it.",
)
async def restore_settings(context: OperationContext) -> dict[str, Any]:
    """Restore the configuration of the last start; the present one is kept beside it."""
    _, home, file = _placed(context)
    done = await anyio.to_thread.run_sync(lambda: restore(file, home.last_good, now=datetime.now(UTC)))
    return {"file": str(done.config), "kept_as": str(done.broken) if done.broken else None}


@operation("log lines", writes=True)
async def read_log(
    context: OperationContext,
    level: Literal["debug", "info", "warning", "error", "critical"] = "info",
    limit: int = 200,
) -> dict[str, Any]:
    """The newest lines of the log from a level on, newest first, of those written lately."""
    settings, home, _ = _placed(context)
    name = settings.gateway.log.file
    file = home.path(name) if name else None

    def read() -> list[str]:
        raw = newest_lines(file) if file is not None else _journal()
        marks = [f'"{name}"' for name in LEVELS[LEVELS.index(level) :]]  # most lines need no reading
        marked = (line for line in islice(raw, 20_000) if any(mark in line for mark in marks))
        lines, wanted = map(parse_line, marked), LineFilter(level=level)
        return [format_line(line) for line in islice(filter(wanted.matches, lines), capped_limit(limit))]

    return {"level": level, "file": str(file or ""), "lines": await anyio.to_thread.run_sync(read)}


@operation("check run", writes=True, done="Checked.")
async def run_check(context: OperationContext) -> dict[str, Any]:
    """Run `squidbot check` in a process of its own, one at a time, for at most two minutes."""
    _, home, file = _placed(context)
    running = context.under_way
    if "check" in running:
        raise RequestInvalid("a check runs already; wait for it")
    command = [sys.executable, "-m", "gateway", "check", "--json"]
    command += ["--home", str(home.root), "--config", str(file)]
    running.add("check")
    try:
        with anyio.fail_after(CHECK_LIMIT_S):
            done = await anyio.run_process(
                command, stdin=subprocess.DEVNULL, check=False, env=dict(os.environ)
            )
        return dict(json.loads(done.stdout))
    except TimeoutError:
        raise CheckFailed(f"the check did not end within {CHECK_LIMIT_S:g} seconds") from None
    except ValueError:
        raise CheckFailed("the check gave no answer; squidbot check on the machine says why") from None
    finally:
        running.discard("check")


def _placed(context: OperationContext) -> tuple[Settings, Home, Path]:
    if context.settings is None or context.home is None:
        raise NotFound("no daemon runs here; squidbot config and squidbot logs work without one")
    source = context.settings.source
    return context.settings, context.home, source.path if source else context.home.config_file


class CheckFailed(GatewayError):
    """The check could not be carried out."""

    exit_code = 1


def _journal() -> Sequence[str]:
    lines = list(from_journal("squidbot", since=datetime.now(UTC) - timedelta(hours=1)))
    return lines[::-1]


def _show(settings: Settings, home: Home, file: Path) -> dict[str, Any]:
    lines, masked = _lines(file)
    return {
        "file": str(file),
        "in_effect": shown_text(settings),
        "warnings": list(settings.warnings),
        "text": "\n".join([*masked, ""]),
        "version": _version(lines),
        "changed": changes(file, home.last_good) if home.last_good.exists() else [],
        "can_restore": home.last_good.exists(),
    }


def _lines(file: Path) -> tuple[list[str], list[str]]:
    """The lines of the file, and the same as they may be shown."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines() if file.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise StateUnusable(f"{file} cannot be read: {error}") from error
    pairs = zip(lines, shown_lines(file, lines), strict=True)
    return lines, [
        line if line == shown else f"{shown}  # kept as line {number}"
        for number, (line, shown) in enumerate(pairs, 1)
    ]


def _write(file: Path, text: str, version: str, save: bool) -> str:  # noqa: FBT001
    """Return the problems of a text; without any, and with ``save``, it is written."""
    lines, masked = _lines(file)
    if _version(lines) != version:
        raise RequestInvalid(f"{file} was changed meanwhile; open the page again")
    given = text.splitlines()
    data = "\n".join([*(_unmasked(line, lines, masked) for line in given), ""]).encode()
    try:
        validate_text(file, data)
        if save:
            files.replace(file, data)
    except ConfigInvalid as error:
        return str(error)
    except OSError as error:
        raise StateUnusable(f"{file} cannot be written: {error.strerror or error}") from error
    return ""


def _unmasked(line: str, lines: Sequence[str], masked: Sequence[str]) -> str:
    found = _KEPT.search(line)
    if found is None and MASK not in line:
        return line
    number = int(found[1]) if found else 0
    if not 0 < number <= len(lines) or masked[number - 1] != line:
        raise RequestInvalid(
            f"a line with {MASK} can only stay as it is or go; to change it, replace all of it: {line[:60]}"
        )
    return lines[number - 1]


def _version(lines: Sequence[str]) -> str:
    return sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()[:16]
