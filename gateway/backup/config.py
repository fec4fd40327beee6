"""
The configuration as it goes into a backup: whole with ``--with-secrets``, else with its secrets taken out.

A secret is taken out wherever its text stands, comments included, and a reference is put in its place which
names no file yet. So a restored squidbot says at its start which secrets it lacks, instead of trying to log
in with a mask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import ConfigInvalid

__all__ = ["KeptConfig", "kept_config"]

_SHORTEST = 3


@dataclass(frozen=True, slots=True)
class KeptConfig:
    """The text (None: left out), where the workspace is, the channels' kinds, and what to tell of it."""

    text: bytes | None
    workspace: Path
    notes: tuple[str, ...]


def kept_config(root: Path, config: Path, *, with_secrets: bool) -> KeptConfig:
    """
    Read a configuration for a backup.

    Args:
        root: The home folder.
        config: The configuration; it may be elsewhere, or not exist.
        with_secrets: Keep it as it is.
    """
    from gateway.settings import load_settings  # noqa: PLC0415 - heavy, and `restore` does without

    notes: list[str] = []
    workspace = root / "workspace"
    secrets: frozenset[str] | None = None
    try:
        settings = load_settings(config, missing_ok=True)
        workspace = root / Path(settings.agents.workspace).expanduser()
        secrets = settings.secrets()
    except ConfigInvalid:
        notes.append("the configuration has mistakes (squidbot check tells them)")
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
        return KeptConfig(text, workspace.resolve(), tuple(notes))
    if secrets is None:
        notes.append("and was left out, because its secrets could not be told from the rest")
        return KeptConfig(None, workspace.resolve(), tuple(notes))
    masked, count = _without(text.decode("utf-8", "surrogateescape"), secrets)
    if count:
        notes.append(
            f"{count} secrets were taken out of the configuration: where it says ${{secret:left-out-N}} put "
            "them back, or put a file of that name into the folder secrets beside it"
        )
    return KeptConfig(masked.encode("utf-8", "surrogateescape"), workspace.resolve(), tuple(notes))


def _without(text: str, secrets: frozenset[str]) -> tuple[str, int]:
    """The text without the secrets, and how many of them were there."""
    count = 0
    for secret in sorted(secrets, key=lambda one: (-len(one), one)):
        if len(secret) < _SHORTEST:
            continue
        pattern = re.escape(secret) if len(secret) >= 8 else rf"(?<!\w){re.escape(secret)}(?!\w)"
        name = f"left-out-{count + 1}"
        text, found = re.subn(pattern, lambda _, name=name: f"${{secret:{name}}}", text)  # type: ignore[misc]
        count += bool(found)
    return text, count
