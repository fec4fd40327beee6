"""
The configuration in a backup: whole with ``--with-secrets``, otherwise without its secrets. A secret is taken
out wherever its text stands, comments included, and a reference is put in its place which names no file yet.
So a restored squidbot says at its start which secrets it lacks, instead of trying to log in with a mask.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml

from gateway.errors import ConfigInvalid

_OPENS, _CLOSES = ("", "\n", " ", "\t", ",", "[", "{"), ("", "\n", "\r", " ", ",", "]", "}")
_CERTAIN = 8
"""A text of so many characters that is a secret is one wherever it stands."""


@dataclass(frozen=True, slots=True)
class KeptConfig:
    """The configuration for a backup (None: left out), the workspace, notes, and outside secret files."""

    text: bytes | None
    workspace: Path
    notes: tuple[str, ...]
    secrets: Mapping[str, Path] = field(default_factory=dict)


def kept_config(root: Path, config: Path, *, with_secrets: bool) -> KeptConfig:
    """Read a configuration for a backup, unmasked ``with_secrets``; it may be elsewhere or missing."""
    from gateway.settings import load_settings

    notes: list[str] = []
    workspace = root / "workspace"
    secrets: frozenset[str] | None = None
    try:
        settings = load_settings(config, missing_ok=True)
        workspace = root / Path(settings.agents.workspace).expanduser()
        secrets = settings.secrets()
        if settings.attachments.store:
            notes.append(
                f"attachments are in {settings.attachments.store} and not in this backup; back that "
                "storage up separately, or turn on versions there"
            )
    except ConfigInvalid:
        notes.append("the configuration has errors; squidbot config check lists them")
    if workspace.resolve() != (root / "workspace").resolve():
        notes.append(
            f"the workspace was at {workspace} and is restored to workspace in the home: move it back, or "
            "change agents.workspace"
        )
    try:
        text = config.read_bytes()
    except FileNotFoundError:
        return KeptConfig(None, workspace.resolve(), tuple(notes))
    if config.resolve() != (root / "squidbot.yaml").resolve():
        notes.append(f"the configuration was at {config} and is restored to squidbot.yaml in the home")
    if with_secrets:
        found, files = _secret_files(root, config)
        notes += [f"{path}, which the configuration names, is not in this backup" for path in files]
        return KeptConfig(text, workspace.resolve(), tuple(notes), found)
    if secrets is None:
        notes.append("and was left out, because its secrets could not be separated from the rest")
        return KeptConfig(None, workspace.resolve(), tuple(notes))
    whole = text.decode("utf-8", "surrogateescape")
    masked, count = _without(whole, secrets)
    if _shape(masked) != _shape(whole):
        notes.append("and was left out, because its secrets could not be separated from the rest")
        return KeptConfig(None, workspace.resolve(), tuple(notes))
    if count:
        notes.append(
            f"{count} secrets were removed from the configuration: replace each ${{secret:left-out-N}} by "
            "its secret, or put the secret into a file of that name in the folder secrets beside it"
        )
    return KeptConfig(masked.encode("utf-8", "surrogateescape"), workspace.resolve(), tuple(notes))


def _secret_files(root: Path, config: Path) -> tuple[dict[str, Path], list[Path]]:
    """Files of secrets outside of the home by their names, and other files that the configuration reads."""
    from gateway.settings.source import read_source

    source = read_source(config, os.environ)
    named = {kind.removeprefix("secret ") for kinds in source.references.values() for kind in kinds}
    found = {path.name.removeprefix("squidbot_secrets_"): path for path in source.files}
    inside = (root / "secrets").resolve()
    secrets = {
        name: path for name, path in found.items() if name in named and path.resolve().parent != inside
    }
    rest = [path for name, path in found.items() if name not in named]
    return secrets, rest


def _without(text: str, secrets: frozenset[str]) -> tuple[str, int]:
    count = 0
    for secret in sorted(secrets, key=lambda one: (-len(one), one)):
        if len(secret) < 3:
            continue
        # A short one may be an ordinary word: it is left in keys and paths.
        alone = rf"(?<![\w/.-]){re.escape(secret)}(?![\w/.:-])"
        pattern = re.escape(secret) if len(secret) >= _CERTAIN else alone
        text, found = re.subn(pattern, partial(_reference, f"left-out-{count + 1}"), text)
        count += bool(found)
    return text, count


def _reference(name: str, match: re.Match[str]) -> str:
    """A reference in the place of a secret, in quotes where that was a whole value without any."""
    is_whole = match.string[: match.start()][-1:] in _OPENS and match.string[match.end() :][:1] in _CLOSES
    reference = f"${{secret:{name}}}"
    return f'"{reference}"' if is_whole else reference


def _shape(text: str) -> object:
    """The keys of a configuration and the lengths of its lists; None if it cannot be read."""

    def of(value: object) -> object:
        if isinstance(value, dict):
            return {str(key): of(each) for key, each in value.items()}
        return [of(each) for each in value] if isinstance(value, list) else ""

    try:
        return of(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
