"""
Runs a newer version on a copy of the home, confined as the assistant's commands are, and compares.

The sandbox reads the newer version, its libraries, the configuration and the secret files that it names; it
writes in one folder, which is removed afterwards; it has no network, and none of the daemon's environment but
the variables that the configuration names. The copy has no attachments, logs, caches and logins.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_core.children import bubblewrap, order, rights
from gateway.errors import GatewayError, StateUnusable
from gateway.operations.backup.contents import DATABASE_NAME, BackupPart, BackupSelection
from gateway.operations.update.new_version import NewVersion
from gateway.settings.source import Source
from gateway.system.home import open_home

_MODULE = "gateway.cli.check.trial_start"
_SECONDS = 300.0
_SAID = 600


class TrialFailed(GatewayError):
    """The newer version could not be tried."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting whose value in effect differs; None: that version does not have it."""

    name: str
    before: Any
    after: Any


async def run_trial(
    new: NewVersion, stage: Path, *, config: Path | None, home: Path | None, source: Source | None
) -> dict[str, Any]:
    """
    Return the report of the newer version, see `gateway.cli.check.trial_start`.

    Args:
        stage: The one folder that it may write; ``home`` is in it.
        config: The configuration; None: there is none.
        home: The copy of the home; None: only the configuration is read.
        source: What the configuration refers to.

    Raises:
        TrialFailed: It was not confined, did not end, or gave no report.
    """
    request, report = stage / "request.json", stage / "report.json"
    given = {"config": config and str(config), "home": home and str(home), "report": str(report)}
    request.write_text(json.dumps(given), encoding="utf-8")
    readable = [*new.readable, *([config] if config else []), *(source.files if source else ())]
    version = order.landlock_version()
    wrapper = "" if version else bubblewrap.find_program()
    if not (version or wrapper):
        raise TrialFailed("this machine has neither Landlock nor bubblewrap, so nothing can be tried safely")
    confinement = order.Confinement(
        landlock=version,
        bubblewrap=wrapper,
        readable=tuple(dict.fromkeys(str(path.resolve()) for path in readable)),
        writable=(str(stage.resolve()),),
        private_in=str(stage.resolve()),
    )
    words = [str(new.python), "-P", "-m", _MODULE, str(request)]
    environment = rights.environment_for(os.environ, _environment(new, source), home=str(stage), private="")
    limits = rights.Ceilings(seconds=_SECONDS, memory_bytes=1_000_000_000, disk_bytes=0, files=0, nice=0)
    try:
        done = await order.run(
            order.order_of(
                words, directory=str(stage), environment=environment, limits=limits, confinement=confinement
            )
        )
    except OSError as error:
        raise TrialFailed(f"the newer version cannot be started: {error.strerror or error}") from error
    try:
        return _report(report)
    except (OSError, ValueError):
        said = (done.tail or done.head).decode("utf-8", "replace").strip()[-_SAID:]
        why = done.error or (f"it reached its limit ({done.limit})" if done.limit else said)
        raise TrialFailed(f"the newer version gave no report: {why or 'it said nothing'}") from None


def _environment(new: NewVersion, source: Source | None) -> dict[str, str]:
    named = {
        kind.removeprefix("env ")
        for kinds in (source.references.values() if source else ())
        for kind in kinds
        if kind.startswith("env ")
    }
    given = {name: os.environ[name] for name in (*named, "CREDENTIALS_DIRECTORY") if name in os.environ}
    found = {**given, "PYTHONDONTWRITEBYTECODE": "1"}
    return found | ({"PYTHONPATH": os.pathsep.join(map(str, new.path))} if new.path else {})


def _report(path: Path) -> dict[str, Any]:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        report = json.loads(file.read(10_000_000))
    if not isinstance(report, dict) or not {"version", "invalid", "failed"} <= report.keys():
        raise ValueError("no report")
    return report


def changed_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[SettingChange]:
    """Return the settings whose values in effect differ, those that are in one of the two only included."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    names = [*old, *(name for name in new if name not in old)]
    return [
        SettingChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)
    ]


def _leaves(value: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        path = f"{name}.{key}" if name else str(key)
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, path)
        else:
            yield path, inner


def copy_home(
    root: Path, workspace: Path, target: Path, snapshot: Callable[[], dict[str, Any]]
) -> tuple[Path, int]:
    """
    Copy a home, whether its daemon runs or not; return the copy and how many files it has.

    Args:
        target: The folder of the copy; it must not exist.
        snapshot: Copies the database into a new folder, see `gateway.operations.backup.snapshot`.

    Raises:
        StateUnusable: It cannot be copied, for example for want of room.
    """
    choice, count = BackupSelection(root, workspace), 1
    try:
        open_home(target)
        staged = Path(snapshot()["folder"])
        try:
            lengths = json.loads((staged / "facts.json").read_text(encoding="ascii"))["lengths"]
            shutil.copyfile(staged / DATABASE_NAME, target / DATABASE_NAME)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        for part in BackupPart:
            for found in choice.files(part, lengths):
                if not found.name.startswith("attachments/"):
                    _copy(found.path, target / found.name, found.limit)
                    count += 1
    except OSError as error:
        raise StateUnusable(f"the home cannot be copied to {target}: {error.strerror or error}") from error
    return target, count


def _copy(path: Path, place: Path, limit: int | None) -> None:
    """Copy a file, or its first ``limit`` bytes; one that is gone meanwhile is left out."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with path.open("rb") as source, place.open("xb") as copy:
            if limit is None:
                shutil.copyfileobj(source, copy)
            else:
                copy.write(source.read(limit))
    except FileNotFoundError:
        return
