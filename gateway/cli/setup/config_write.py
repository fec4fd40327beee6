"""
Writes the configuration and its secrets: proved by the real loader first, and all or nothing.

The new file is written beside the old one, read by `load_settings` with the new secrets, and compared with
the answers; only then the secrets are put in place and, last of all, the configuration. What was there
before stays as ``squidbot.yaml.bak-DATE``.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from agent_core.files import replace
from gateway.cli.setup.config_changes import HEAD, Answers, Draft, draft
from gateway.cli.setup.options import InitRefused
from gateway.cli.setup.yaml_edit import changed, value_at
from gateway.errors import ConfigInvalid, StateUnusable
from gateway.settings import Settings, load_settings
from gateway.settings.secrets import secret_places
from gateway.settings.source import compose, plain, read_source, show_path


@dataclass(frozen=True, slots=True)
class Existing:
    """The configuration as it is; ``text`` is empty if there is none. ``settings`` are what it means."""

    path: Path
    text: str
    before: dict[str, Any]
    now: dict[str, Any]
    settings: Settings


@dataclass(frozen=True, slots=True)
class Planned:
    """What will be written. ``told`` describes it for a person; nothing changes if ``same``."""

    existing: Existing
    text: str
    draft: Draft
    told: tuple[str, ...]
    same: bool


def look(path: Path, environ: Mapping[str, str]) -> Existing:
    """
    Read the present configuration.

    Raises:
        ConfigInvalid: There is a configuration, and it is wrong; it must be mended, or moved away, first.
    """
    if not path.exists():
        if path.is_symlink():
            raise ConfigInvalid(f"{path} is a link to something that does not exist")
        return Existing(path, "", {}, {}, Settings())
    try:
        settings = load_settings(path, environ=environ)
        text = path.read_bytes().decode("utf-8-sig")
        before = plain(compose(text)) or {}
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{error}\nFix this first, or move the file away; nothing was changed") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigInvalid(f"{path} cannot be read: {error}") from error
    return Existing(path, text, before, read_source(path, environ).data, settings)


def plan(existing: Existing, answers: Answers) -> Planned:
    """Work out the new file. Raises `ConfigInvalid`: the present one cannot be changed soundly."""
    made = draft(answers, existing.before, existing.now)
    try:
        new = changed(existing.text or HEAD, made.wanted, made.notes)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigInvalid(f"{existing.path}: {error}") from error
    told = []
    folder = existing.path.parent / "secrets"
    for name, secret in made.secrets.items():
        place = folder / name
        there = _content(place)
        if there is None:
            told.append(f"creates the secret {place} (readable by you alone, 0600)")
        elif there != secret:
            told.append(f"REPLACES the secret {place}")
    if existing.text and new.edited:
        told.append(f"changes in {existing.path}: {', '.join(show_path(path) for path in new.edited)}")
        told.append("keeps everything else in it, and the present file beside it as .bak-DATE")
    elif not existing.text:
        told.append(f"creates {existing.path} (readable by you alone, 0600)")
    if new.anew:
        told.append(
            "writes it without its comments, because it cannot be changed in place (.bak-DATE has them)"
        )
    same = bool(existing.text) and not new.edited and not made.secrets
    return Planned(existing, new.text, made, tuple(told), same)


def put(planned: Planned, environ: Mapping[str, str], now: datetime) -> Settings:
    """
    Prove it and put it in place.

    Raises:
        ConfigInvalid: It would not work; nothing was changed.
        StateUnusable: It cannot be written.
    """
    existing = planned.existing
    path = existing.path
    if planned.same:
        return existing.settings
    with _undisturbed():
        try:
            _put(planned, environ, now)
        except OSError as error:
            where = error.filename or path
            raise StateUnusable(f"{where} cannot be written: {error.strerror or error}") from error
    return load_settings(path, environ=environ)


def _put(planned: Planned, environ: Mapping[str, str], now: datetime) -> None:
    existing, path = planned.existing, planned.existing.path
    _make_folder(path.parent)
    with tempfile.TemporaryDirectory(prefix=".squidbot-init-", dir=path.parent) as name:
        _prove(planned, Path(name), environ)
    folder = path.parent / "secrets"
    if planned.draft.secrets:
        _make_folder(folder)
    for secret, text in planned.draft.secrets.items():
        if _content(folder / secret) != text:
            replace(folder / secret, (text + "\n").encode())
    if planned.text != existing.text:
        if existing.text:
            _keep(path, now)
        replace(path.resolve() if path.is_symlink() else path, planned.text.encode())


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


def _prove(planned: Planned, folder: Path, environ: Mapping[str, str]) -> None:
    """Read it with the real loader, and see that every answer comes out as it was given."""
    path, made = planned.existing.path, planned.draft
    handed = environ.get("CREDENTIALS_DIRECTORY")
    for name in made.secrets:
        usual = secret_places(name, beside=path.parent, environ=environ)
        for place in usual[:-1]:
            if place.exists():
                raise InitRefused(
                    f"the secret {name} comes from {place}, which takes precedence; remove it there"
                )
    secrets = folder / "given"
    secrets.mkdir(mode=0o700)
    if handed and Path(handed).is_dir():
        for one in Path(handed).iterdir():
            if one.is_file():
                shutil.copyfile(one, secrets / one.name)
    for name, text in made.secrets.items():
        replace(secrets / name, (text + "\n").encode())
    # In the same folder, so that relative paths mean the same.
    staged = path.parent / f"{folder.name}.yaml"
    try:
        replace(staged, planned.text.encode())
        there = {**environ, "CREDENTIALS_DIRECTORY": str(secrets)}
        try:
            load_settings(staged, environ=there)
        except ConfigInvalid as error:
            told = str(error).replace(str(staged), str(path))
            raise ConfigInvalid(
                f"nothing was written, because the configuration would not work: {told}"
            ) from error
        found = read_source(staged, there).data
    finally:
        staged.unlink(missing_ok=True)
    wrong = [key for key, value in made.meant.items() if value_at(found, key) != value]
    if wrong:
        problems = ", ".join(show_path(key) for key in wrong)
        raise ConfigInvalid(f"nothing was written: {problems} would not be read as given")


def _make_folder(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True)


def _keep(path: Path, now: datetime) -> None:
    """A copy of what was there, under a name that is free."""
    first = path.with_name(f"{path.name}.bak-{now:%Y-%m-%d}")
    target, number = first, 1
    while target.exists():
        number += 1
        target = first.with_name(f"{first.name}-{number}")
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as copy:
        copy.write(path.read_bytes())
        copy.flush()
        os.fsync(copy.fileno())


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError):
        return None
