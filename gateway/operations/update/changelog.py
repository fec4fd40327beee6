"""The lines of a newer changelog that an older one does not have. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

_RELEASE = re.compile(r"## \[?([^\]\s]+)\]?")
_NO_RELEASE = "Unreleased"


@dataclass(frozen=True, slots=True)
class Change:
    """One entry: the release and the section that it stands in, and its text in one line."""

    release: str
    section: str
    text: str


def changes_between(older: str, newer: str, version: str) -> list[Change]:
    """
    Return the entries of ``newer`` that ``older`` does not have, in their order.

    Args:
        older: The changelog of what is installed; "" if that has none.
        newer: The other one.
        version: The installed version. Entries of it and of releases before it are left out.
    """
    known = {change.text for change in _entries(older)}
    found = [change for change in _entries(newer) if change.text not in known]
    return [change for change in found if not _is_old(change.release, version)]


def _entries(text: str) -> list[Change]:
    found: list[Change] = []
    release = section = ""
    entry: list[str] = []

    def end() -> None:
        if entry:
            found.append(Change(release, section, " ".join(entry)))
            entry.clear()

    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            end()
        if match := _RELEASE.match(line):
            release, section = match[1], ""
        elif line.startswith("### "):
            section = line[4:].strip()
        elif line.startswith(("- ", "* ")):
            end()
            entry.append(line[2:].strip())
        elif entry:
            entry.append(line.strip())
    end()
    return found


def _is_old(release: str, version: str) -> bool:
    if release == _NO_RELEASE:
        return False
    try:
        return Version(release) <= Version(version)
    except InvalidVersion:
        return False
