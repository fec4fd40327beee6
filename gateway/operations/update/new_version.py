"""
Finds a newer squidbot in what somebody names: a wheel, an environment with it, or a checkout.

A wheel or a checkout without an environment of its own runs on the libraries that are installed here; which
of them do not suffice is said. With an index of packages, a wheel gets an environment with its own libraries.
`changes_between` lists what its changelog says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from gateway.errors import GatewayError

DISTRIBUTION = "squidbot-gateway"
_CHANGELOG = "share/squidbot/CHANGELOG.md"
_MAX_FILES, _MAX_BYTES = 20_000, 500_000_000


class NoNewVersion(GatewayError):
    """There is no squidbot that could be tried."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class NewVersion:
    """
    A squidbot that can be started without being installed here.

    Args:
        python: Its interpreter.
        path: Folders in which the interpreter looks for modules first.
        readable: Folders that it must read.
        changelog: Its text; "" if there is none.
        version: By its metadata; "" if it does not say.
        missing: Requirements that what is installed does not satisfy.
    """

    python: Path
    readable: tuple[Path, ...]
    path: tuple[Path, ...] = ()
    changelog: str = ""
    version: str = ""
    missing: tuple[str, ...] = field(default=())


def installed_changelog() -> str:
    """Return the changelog of the squidbot that runs; "" if it has none."""
    checkout = Path(__file__).parents[3]
    return _text(checkout / "CHANGELOG.md") or _text(Path(sys.prefix) / _CHANGELOG)


def find_new_version(source: Path | None, stage: Path, *, index: str | None = None) -> NewVersion:
    """
    Find the squidbot in ``source``; None: the one that is installed here.

    Args:
        stage: An empty folder, in which a wheel is unpacked or installed.
        index: The address of an index of packages, from which the libraries of a wheel are installed.

    Raises:
        NoNewVersion: There is none, or it cannot be unpacked or installed.
    """
    if source is None:
        version = metadata.version(DISTRIBUTION)
        return NewVersion(Path(sys.executable), _own_folders(), (), installed_changelog(), version)
    source = source.expanduser().absolute()
    if source.suffix == ".whl" and source.is_file():
        return _from_index(source, stage, index) if index else _unpacked(source, stage)
    if (source / "bin" / "python").exists():
        return _environment(source)
    if (source / "gateway" / "__init__.py").is_file():
        own = source / ".venv"
        if (own / "bin" / "python").exists():
            found = _environment(own)
            readable = (*found.readable, source)
            return NewVersion(
                found.python, readable, (source,), _text(source / "CHANGELOG.md"), found.version
            )
        return NewVersion(
            Path(sys.executable), (*_own_folders(), source), (source,), _text(source / "CHANGELOG.md")
        )
    raise NoNewVersion(f"{source} is no wheel, no environment with squidbot in it and no checkout of it")


def _own_folders() -> tuple[Path, ...]:
    checkout = Path(__file__).parents[3]
    return (Path(sys.prefix), Path(sys.base_prefix), checkout)


def _environment(folder: Path) -> NewVersion:
    python = folder / "bin" / "python"
    base = python.resolve().parent.parent
    found = sorted(folder.glob(f"lib/python3*/site-packages/{DISTRIBUTION.replace('-', '_')}-*.dist-info"))
    if not found:
        raise NoNewVersion(f"squidbot is not installed in {folder}")
    version = metadata.PathDistribution(found[-1]).version
    return NewVersion(python, (folder, base), (), _text(folder / _CHANGELOG), version)


def _unpacked(wheel: Path, stage: Path) -> NewVersion:
    folder = stage / "wheel"
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = archive.infolist()
            if len(entries) > _MAX_FILES or sum(each.file_size for each in entries) > _MAX_BYTES:
                raise NoNewVersion(f"{wheel} is far too large for squidbot")
            archive.extractall(folder)  # it keeps what it unpacks below the folder
    except (OSError, zipfile.BadZipFile) as error:
        raise NoNewVersion(f"{wheel} cannot be unpacked: {error}") from error
    [*infos] = folder.glob(f"{DISTRIBUTION.replace('-', '_')}-*.dist-info")
    if len(infos) != 1:
        raise NoNewVersion(f"{wheel} is no wheel of squidbot")
    about = metadata.PathDistribution(infos[0])
    needs = about.metadata["Requires-Python"] or ""
    python = ".".join(map(str, sys.version_info[:3]))
    missing = [] if python in SpecifierSet(needs) else [f"Python {needs} (here is {python})"]
    missing += _unsatisfied(about)
    changelog = next(iter(folder.glob(f"*.data/data/{_CHANGELOG}")), folder / "none")
    return NewVersion(
        Path(sys.executable),
        (*_own_folders(), folder),
        (folder,),
        _text(changelog),
        about.version,
        tuple(missing),
    )


def _unsatisfied(about: metadata.Distribution) -> list[str]:
    """Return what a wheel requires without an extra, and is not installed here in a version that suffices."""
    found: list[str] = []
    for text in about.requires or ():
        try:
            required = Requirement(text)
        except InvalidRequirement:
            found.append(text)
            continue
        if required.marker is not None and not required.marker.evaluate({"extra": ""}):
            continue
        try:
            here = metadata.version(required.name)
        except metadata.PackageNotFoundError:
            found.append(f"{required.name}{required.specifier} (not installed)")
            continue
        if not required.specifier.contains(here, prereleases=True):
            found.append(f"{required.name}{required.specifier} (installed is {here})")
    return found


def _from_index(wheel: Path, stage: Path, index: str) -> NewVersion:
    """Install a wheel with its libraries from an index; nothing is built, so nothing of theirs runs."""
    folder = stage / "environment"
    python = folder / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:"]
    steps = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", *options, "--index-url", index, str(wheel)],
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    for step in steps:
        try:
            done = subprocess.run(  # noqa: S603 - the commands of the lines above
                step, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=clean,
                timeout=900,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoNewVersion(f"{wheel.name} cannot be installed: {error}") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no reason was given"]
            raise NoNewVersion(f"{wheel.name} cannot be installed: {said[0]}")
    return _environment(folder)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


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
