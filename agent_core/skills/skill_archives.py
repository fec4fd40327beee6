"""
Lists what an archive (zip, tar, tar.gz) holds, without unpacking it: what is too much is refused before it
is read into memory. A module of its own, as a daemon to which nobody adds a skill does without the libraries.
Blocks.
"""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

from agent_core.errors import SkillInvalid

_LONG_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


_Entry = tuple[str, Callable[[int], bytes] | None]


def entries_of_archive(content: bytes, most: int) -> Iterator[_Entry]:
    """
    Yield each name in an archive but folders, with a function that reads a plain file up to a size.

    Raises SkillInvalid for more than ``most`` of them, and anything for a damaged archive.
    """
    if content.startswith(b"PK"):
        yield from _entries_of_zip(content, most)
        return
    mode = "r|gz" if content.startswith(b"\x1f\x8b") else "r|"
    left = 64 * 1024 * 1024
    with tarfile.open(fileobj=io.BytesIO(content), mode=mode, tarinfo=_Member) as tar:  # type: ignore[call-overload]
        for count, member in enumerate(tar):
            left -= member.size
            if count >= most or left < 0:
                raise SkillInvalid("the archive holds too many files, or too much")
            if not member.isdir():
                plain = member.isreg() and not member.issparse()
                yield (member.name, partial(_read_member, tar, member) if plain else None)
            tar.members.clear()  # else it remembers each of them


def _entries_of_zip(content: bytes, most: int) -> Iterator[_Entry]:
    # The list of its files is read as a whole, so they are counted before.
    if content.count(b"PK\x01\x02") > most:
        raise SkillInvalid("the archive holds too many files")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
            if not info.is_dir():
                yield (info.orig_filename, partial(_read_member, archive, info) if plain else None)


def _read_member(archive: Any, member: Any, most: int) -> bytes:
    is_zip = isinstance(archive, zipfile.ZipFile)
    with archive.open(member) if is_zip else archive.extractfile(member) as file:
        return bytes(file.read(most + 1))


class _Member(tarfile.TarInfo):
    """A member whose long headers are refused before they are read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header of a sensible size."""
        found = super().frombuf(buf, encoding, errors)
        if found.type in _LONG_HEADERS and found.size > 64 * 1024:
            raise SkillInvalid("the archive contains a name that is too long")
        return found
