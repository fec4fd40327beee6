"""Folders and archives with skills, also those that nobody should be given."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

TEA = b"---\nname: tea\ndescription: How to make tea.\n---\nBoil water.\n"
FILES = {"SKILL.md": TEA, "references/kinds.md": b"Black, green.\n", "scripts/boil.sh": b"echo boiling\n"}


def folder(path: Path, files: Mapping[str, bytes] = FILES) -> Path:
    """The files in a folder."""
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, to: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, to, len(content)
    return found, content


def tar(path: Path, members: Iterable[tuple[tarfile.TarInfo, bytes]], mode: str = "w:gz") -> Path:
    """A tar of these members."""
    with tarfile.open(path, mode) as out:
        for info, content in members:
            out.addfile(info, io.BytesIO(content))
    return path


def tar_of(path: Path, files: Mapping[str, bytes], mode: str = "w:gz") -> Path:
    return tar(path, (member(name, content) for name, content in files.items()), mode)


def zip_of(path: Path, files: Iterable[tuple[str | zipfile.ZipInfo, bytes]]) -> Path:
    """A zip of these files, names as they are given, also twice."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files:
            info = name if isinstance(name, zipfile.ZipInfo) else zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(info, content)
    return path


def below(top: str, files: Mapping[str, bytes] = FILES) -> dict[str, bytes]:
    return {f"{top}/{name}": content for name, content in files.items()}
