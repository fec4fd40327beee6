"""
Where files of secrets are looked for, so that one configuration works everywhere.

``${secret:NAME}`` is looked for in the order of `secret_places`: what systemd hands over
(``LoadCredential=``), what Docker and compose mount, and a folder beside the configuration. The first that
exists counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_CONTAINER = Path("/run/secrets")


def is_secret_file_name(name: str) -> bool:
    """Return True if ``name`` is a NAME of ``${secret:NAME}``: letters, digits and ``_ . -``, no path."""
    return _NAME.fullmatch(name) is not None


def secret_places(name: str, *, beside: Path, environ: Mapping[str, str]) -> list[Path]:
    """
    Return the possible files of a secret, in order; ``name`` must be valid.

    ``environ`` has CREDENTIALS_DIRECTORY (systemd.exec(5), "CREDENTIALS"). systemd joins the names of a
    loaded folder, so ``/etc/squidbot/secrets/NAME`` loaded as ``squidbot:/etc/squidbot`` is
    ``squidbot_secrets_NAME``.
    """
    places = []
    if handed := environ.get("CREDENTIALS_DIRECTORY"):
        folder = Path(handed)
        places += [folder / name, folder / f"squidbot_secrets_{name}"]
    return [*places, _CONTAINER / name, beside / "secrets" / name]
