"""
Reads the configuration, and writes a new one and its secrets, proved by the real loader, or nothing at all. A
configuration that a person has is not changed: `PlannedSetup.lacks` is what it does not say yet.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_core.files import replace
from channels.setup import SecretLine, SetupRefused
from gateway.cli.setup.config_lines import (
    HEAD,
    Answers,
    Tree,
    lines_of,
    missing_in,
    secrets_of,
    settings_of,
)
from gateway.errors import ConfigInvalid, StateUnusable
from gateway.settings import Settings, load_settings
from gateway.settings.source import read_source, secret_places


@dataclass(frozen=True, slots=True)
class ExistingConfig:
    """The configuration as it is: what it says once references are looked up, and what that means."""

    path: Path
    is_there: bool
    now: Tree
    settings: Settings


@dataclass(frozen=True, slots=True)
class PlannedSetup:
    """The lines that the configuration lacks, and the secret files to write. ``told`` is for a person."""

    existing: ExistingConfig
    lacks: Tree
    secrets: tuple[SecretLine, ...]
    told: tuple[str, ...]


def read_existing(path: Path, environ: Mapping[str, str]) -> ExistingConfig:
    """Read the present configuration. Raises ConfigInvalid: it must first be repaired or moved away."""
    if path.is_symlink() and not path.exists():
        raise ConfigInvalid(f"{path} is a link to something that does not exist")
    try:
        if not path.exists() or not path.read_bytes().strip():
            return ExistingConfig(path, False, {}, Settings())
        settings = load_settings(path, environ=environ)
        return ExistingConfig(path, True, read_source(path, environ).data, settings)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{error}\nFix this first, or move the file away; nothing was changed") from error
    except (OSError, ValueError) as error:
        raise ConfigInvalid(f"{path} cannot be read: {error}") from error


def plan(existing: ExistingConfig, answers: Answers, environ: Mapping[str, str]) -> PlannedSetup:
    """Work out what is to be written. Raises `SetupRefused`: another file hides a secret."""
    lacks = missing_in(existing.now, settings_of(answers, existing.now))
    path, told, secrets = existing.path, [], []
    for secret in secrets_of(lacks):
        *before, place = secret_places(secret.name, beside=path.parent, environ=environ)
        if hiding := next((one for one in before if one.exists()), None):
            raise SetupRefused(
                f"the secret {secret.name} comes from {hiding}, which takes precedence; remove it there"
            )
        there = _content(place)
        if there != secret.text:
            secrets.append(secret)
            new = f"creates the secret {place} (readable by you alone, 0600)"
            told.append(new if there is None else f"REPLACES the secret {place}")
    if not existing.is_there:
        told.append(f"creates {path} (readable by you alone, 0600)")
    return PlannedSetup(existing, lacks, tuple(secrets), tuple(told))


def write_setup(planned: PlannedSetup, environ: Mapping[str, str]) -> tuple[Settings, Tree]:
    """
    Write the secrets, and the configuration unless one exists.

    Returns:
        The settings, and what a person has to write into the configuration.

    Raises:
        ConfigInvalid: It would not work; nothing was changed.
        StateUnusable: It cannot be written.
    """
    path = planned.existing.path
    try:
        with _undisturbed():
            return _put(planned, environ)
    except OSError as error:
        where = error.filename or path
        raise StateUnusable(f"{where} cannot be written: {error.strerror or error}") from error


def _put(planned: PlannedSetup, environ: Mapping[str, str]) -> tuple[Settings, Tree]:
    path, folder = planned.existing.path, planned.existing.path.parent / "secrets"
    for place in (path.parent, folder) if planned.secrets else (path.parent,):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = {one.name: _content(folder / one.name) for one in planned.secrets}
    for one in planned.secrets:
        replace(folder / one.name, (one.text + "\n").encode())
    if planned.existing.is_there:
        return load_settings(path, environ=environ), missing_in(
            read_source(path, environ).data, planned.lacks
        )
    # In the same folder, so that relative paths mean the same.
    staged = path.with_name(f"{path.name}.new")
    try:
        replace(staged, "\n".join([HEAD, *lines_of(planned.lacks), ""]).encode())
        load_settings(staged, environ=environ)
        _prove_answers(staged, planned.lacks, environ)
        staged.replace(path)
    except ConfigInvalid as error:
        staged.unlink(missing_ok=True)
        for name, text in before.items():
            if text is None:
                (folder / name).unlink()
            else:
                replace(folder / name, (text + "\n").encode())
        told = str(error).replace(str(staged), str(path))
        raise ConfigInvalid(
            f"nothing was written, because the configuration would not work: {told}"
        ) from error
    return load_settings(path, environ=environ), {}


def _prove_answers(path: Path, wanted: Tree, environ: Mapping[str, str]) -> None:
    if wrong := missing_in(read_source(path, environ).data, wanted):
        raise ConfigInvalid(f"this would not be read as given: {', '.join(wrong)}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C does nothing for this moment: it must not say "nothing was written" in the middle of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError):
        return None
