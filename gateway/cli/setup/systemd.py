"""
Writes the systemd unit with the paths of this installation, and starts it. Nothing here ends the set-up: what
cannot be done is told with the commands that do it.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

Kind = Literal["user", "system"]
_NAMES: dict[str, str] = {"user": "squidbot-user.service", "system": "squidbot.service"}
_LIMIT_S = 150.0
"""More than TimeoutStartSec of the units."""


@dataclass(frozen=True, slots=True)
class SystemPlaces:
    """The paths of a system service."""

    units: Path = Path("/etc/systemd/system")
    config: Path = Path("/etc/squidbot/squidbot.yaml")
    home: Path = Path("/var/lib/private/squidbot")
    lingering: Path = Path("/var/lib/systemd/linger")
    booted: Path = Path("/run/systemd/system")


@dataclass(slots=True)
class InstalledService:
    """The result of an installation: the service runs, steps done, steps remaining."""

    running: bool = False
    done: list[str] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)


def find_unit(kind: Kind) -> Path | None:
    """The unit that came with this installation: of the package, or of the repository."""
    name = _NAMES[kind]
    places = [
        Path(sysconfig.get_path("data")) / "share" / "squidbot",
        Path(sys.prefix) / "share" / "squidbot",
        Path(sysconfig.get_path("data", f"{os.name}_user")) / "share" / "squidbot",
        Path(__file__).parents[3] / "deploy" / "systemd",
    ]
    return next((place / name for place in places if (place / name).is_file()), None)


def unit_text(template: str, *, program: Path, arguments: Sequence[str], own_config: bool) -> str:
    """
    The unit for this installation. Pure.

    Args:
        program: The command ``squidbot``.
        arguments: What follows ``run``; left as delivered if ``own_config``, because then the service
            manager hands the configuration over.
    """
    lines = []
    for line in template.splitlines():
        if line.startswith("ExecStart="):
            delivered = line.partition(" run")[2] if own_config else ""
            words = "".join(f" {_word(word)}" for word in arguments)
            line = f"ExecStart={_word(str(program))} run{delivered or words}"  # noqa: PLW2901
        lines.append(line)
    return "\n".join(lines) + "\n"


def install(
    kind: Kind,
    *,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    now: datetime,
    places: SystemPlaces = SystemPlaces(),  # noqa: B008 - a frozen value
) -> InstalledService:
    """Write the unit and start it."""
    result = InstalledService()
    user = kind == "user"
    folder = _user_units(environ) if user else places.units
    control = ["systemctl", "--user"] if user else ["systemctl"]
    source = find_unit(kind)
    if source is None:
        result.remaining.append(
            f"the unit {_NAMES[kind]} is not in this installation; it is in deploy/systemd"
        )
        return result
    program = _program()
    text = unit_text(
        source.read_text(encoding="utf-8"), program=program, arguments=arguments, own_config=not user
    )
    unit = folder / "squidbot.service"
    commands = [
        [*control, "daemon-reload"],
        [*control, "enable", "squidbot"],
        [*control, "restart", "squidbot"],
    ]
    try:
        _write(unit, text, now, result)
    except OSError as error:
        result.remaining.append(f"{unit} cannot be written: {error.strerror or error}")
        return result
    if not user and any(str(program).startswith(f"{one}/") for one in ("/root", "/home")):
        result.remaining.append(
            f"the service cannot read {program.parent}: install squidbot into /opt/squidbot, and "
            "run this again with /opt/squidbot/bin/squidbot"
        )
        return result
    if shutil.which("systemctl", path=environ.get("PATH")) is None or not places.booted.is_dir():
        result.remaining.append("systemd does not run on this machine; on one with systemd, run:")
        result.remaining += [f"  {' '.join(command)}" for command in commands]
        return result
    for number, command in enumerate(commands):
        if wrong := _run(command, environ):
            result.remaining.append(f"{' '.join(command)} failed: {wrong}")
            result.remaining += [f"  {' '.join(each)}" for each in commands[number:]]
            return result
        result.done.append(" ".join(command))
    result.running = True
    if user and not (places.lingering / _me()).exists():
        result.remaining.append(
            f"loginctl enable-linger {_me()}    (once, so that it also runs while you are not logged in)"
        )
    return result


def _user_units(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "systemd" / "user"


def _program() -> Path:
    """The command of this installation, as a path that stays."""
    beside = Path(sys.executable).with_name("squidbot")
    found = None if beside.exists() else shutil.which("squidbot")
    return Path(found).absolute() if found else beside


def _word(text: str) -> str:
    """One word of a command line of systemd (systemd.service(5), "COMMAND LINES")."""
    text = text.replace("%", "%%").replace("$", "$$")
    if text and all(char.isalnum() or char in "/._-=:+,@%$" for char in text):
        return text
    inner = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inner}"'


def _write(unit: Path, text: str, now: datetime, result: InstalledService) -> None:
    before = unit.read_text(encoding="utf-8") if unit.exists() else None
    if before == text:
        result.done.append(f"{unit} exists already")
        return
    unit.parent.mkdir(parents=True, exist_ok=True)
    if before is not None:
        kept = unit.with_name(f"{unit.name}.bak-{now:%Y-%m-%d-%H%M%S}")
        kept.write_text(before, encoding="utf-8")
        result.done.append(f"what was in {unit} is now {kept.name}")
    temporary = unit.with_name(f".{unit.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o644)
    temporary.replace(unit)
    result.done.append(f"{unit} is written")


def _run(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Run a command and return its error, or ""."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            command, env=dict(environ), capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = (done.stderr or done.stdout).strip().splitlines()
    return said[-1] if said else f"exit code {done.returncode}"


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
