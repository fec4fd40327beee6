"""
The configuration with which the daemon last started: saved, compared with the present one, restored. Kept is
the file as it stands, references unresolved, for its owner alone (``state/last-good.yaml``). It may hold
secrets that were written into the configuration itself, so backups without secrets leave it out, and nothing
of it is shown before secrets are masked: also in a file that is too broken to be read, where a line whose key
sounds like a secret is masked to its end, with what is indented below it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent_core import files
from gateway.errors import ConfigInvalid, NotFound, StateUnusable
from gateway.observability.redaction import MASK, Redactor
from gateway.settings import Settings, load_settings
from gateway.settings.source import is_secret_name, read_source

LAST_GOOD = "last-good.yaml"
_MAX_LINES = 60
_KEY = re.compile(
    r"(?P<lead>(?P<indent>[\s-]*)(?:.*?[{,\s])??[\"']?)(?P<key>[A-Za-z0-9_-]+)(?P<colon>[\"']?\s*:\s*)"
)
_SECRET_KEYS = frozenset({"key", "state_key", "access_key_id", "secret_access_key", "env", "headers"})
"""Secrets of the settings whose names alone do not say so; ``env`` and ``headers`` with what is below."""
_ONLY_REFERENCE = re.compile(r"[\"']?\$\{[^}]*\}[\"']?\s*(?:[,}].*)?(?:#.*)?")


@dataclass(frozen=True, slots=True)
class RestoredConfig:
    """The result of `restore`: the written file, and where the previous one is (None: there was none)."""

    config: Path
    broken: Path | None


def keep_last_good(settings: Settings, kept: Path) -> bool:
    """Save the settings' file at ``kept`` if it differs; return True if written. Raises `OSError`."""
    if settings.source is None:
        return False
    text = settings.source.text.encode()
    if kept.exists() and kept.read_bytes() == text:
        return False
    files.replace(kept, text)
    return True


def changes(config: Path, kept: Path) -> list[str]:
    """Return the changed lines since the last good configuration (``- …``, ``+ …``), secrets masked."""
    try:
        before, now = _lines(kept), _lines(config)
    except (OSError, ValueError):
        return []
    redactor = Redactor(_secrets(kept) | _secrets(config))
    shown_before, shown_now = mask_lines(before, redactor), mask_lines(now, redactor)
    found: list[str] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        found += [f"- line {number + 1}: {shown_before[number]}" for number in range(a, b)]
        found += [f"+ line {number + 1}: {shown_now[number]}" for number in range(c, d)]
    more = len(found) - _MAX_LINES
    return [*found[:_MAX_LINES], f"… and {more} lines more"] if more > 0 else found


def shown_lines(config: Path, lines: Iterable[str]) -> list[str]:
    """The lines of this configuration with everything masked that may be a secret."""
    return mask_lines(lines, Redactor(_secrets(config)))


def mask_lines(lines: Iterable[str], redactor: Redactor) -> list[str]:
    """Lines of a configuration, valid or not, with everything masked that may be a secret."""
    result: list[str] = []
    below: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip(" -"))
        if below is not None and line.strip() and indent > below:
            result.append(f"{line[:indent]}{MASK}")
            continue
        below = None
        secret = next((found for found in _KEY.finditer(line) if _is_masked(found["key"].lower())), None)
        if secret is None or not _value(line[secret.end() :]):
            below = indent if secret is not None else None
            result.append(redactor.text(line) if secret is None else redactor.redact_configured_secrets(line))
            continue
        rest = line[secret.end() :]
        below = indent
        if _ONLY_REFERENCE.fullmatch(rest):
            result.append(redactor.redact_configured_secrets(line))
        else:
            result.append(f"{redactor.redact_configured_secrets(line[: secret.end()])}{MASK}")
    return result


def _is_masked(key: str) -> bool:
    return is_secret_name(key) or key in _SECRET_KEYS


def require_last_good(kept: Path) -> None:
    """Raise `NotFound` if nothing is kept that could be put back."""
    if not kept.exists():
        raise NotFound(
            f"there is no last good configuration ({kept}); `squidbot run` saves one each time it has started"
        )


def restore(config: Path, kept: Path, *, now: datetime) -> RestoredConfig:
    """Restore the last good ``config`` and keep the present. Raises NotFound, ConfigInvalid."""
    require_last_good(kept)
    _still_good(config, kept)
    broken = None
    try:
        if config.exists():
            present = config.read_bytes()
            if present == kept.read_bytes():
                return RestoredConfig(config, None)
            broken = _free(config, now)
            files.write_new(broken, present)
        files.replace(config, kept.read_bytes())
    except OSError as error:
        raise StateUnusable(f"{config} cannot be replaced: {error.strerror or error}") from error
    return RestoredConfig(config, broken)


def _still_good(config: Path, kept: Path) -> None:
    try:
        validate_text(config, kept.read_bytes())
    except OSError as error:
        raise StateUnusable(f"{config.parent} cannot be written to: {error.strerror or error}") from error
    except ConfigInvalid as error:
        told = str(error).replace(str(config), str(kept))
        raise ConfigInvalid(f"the last good configuration no longer works either.\n{told}") from error


def validate_text(config: Path, text: bytes) -> None:
    """
    Raise ConfigInvalid if this text cannot be the configuration ``config``. Raises `OSError`.

    Relative references start at the folder of the configuration, so it is read there.
    """
    trial = config.with_name(f".{config.name}.{LAST_GOOD}")
    try:
        files.write_new(trial, text)
        load_settings(trial)
    except ConfigInvalid as error:
        raise ConfigInvalid(str(error).replace(str(trial), str(config))) from error
    finally:
        trial.unlink(missing_ok=True)


def _free(config: Path, now: datetime) -> Path:
    stamp = f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    names = (config.with_name(f"{config.name}.broken-{stamp}{f'-{n}' if n else ''}") for n in range(1000))
    return next(path for path in names if not path.exists())


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8-sig").splitlines()


def _secrets(path: Path) -> set[str]:
    """Texts of secrets that stand in the file itself, as far as it can be read; environment left out."""
    return set(read_source(path, {}).secret_texts)


def _value(rest: str) -> bool:
    return bool(rest.strip()) and not rest.lstrip().startswith("#")
