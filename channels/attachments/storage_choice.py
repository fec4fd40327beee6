"""Chooses the storage that a setting names: ``s3://bucket/prefix``, a shared folder, or the home."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from channels.attachments.attachment_storage import Storage
from channels.attachments.file_storage import LocalFiles

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()-]+(?:/[A-Za-z0-9!_.*'()-]+)*")
_S3 = "s3://"


def place_problem(place: str) -> str | None:
    """Return what is wrong with a setting, or None."""
    if not place:
        return None
    if place.startswith(_S3):
        bucket, _, prefix = place.removeprefix(_S3).partition("/")
        prefix = prefix.rstrip("/")
        if not _BUCKET.fullmatch(bucket):
            return (
                "a bucket's name consists of lower-case letters, digits, '-' and '.', as in "
                "s3://bucket/prefix"
            )
        if prefix and (not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/"))):
            return (
                "each part of the prefix consists of letters, digits, '-', '_' and '.', as in "
                "s3://bucket/prefix"
            )
        return None
    path = Path(place)
    if not path.is_absolute() or ".." in path.parts or "://" in place:
        return "it must be s3://bucket/prefix or the absolute path of an existing folder"
    return None


def storage_at(home_root: Path, place: str = "", options: Mapping[str, str] | None = None) -> Storage:
    """The storage of a setting; it is not accessed yet."""
    if not place:
        return LocalFiles(home_root)
    if not place.startswith(_S3):
        return LocalFiles(Path(place), is_shared=True)
    from channels.attachments.object_storage import ObjectFiles  # noqa: PLC0415 - not for files on a disk

    bucket, _, prefix = place.removeprefix(_S3).partition("/")
    return ObjectFiles(bucket, prefix.rstrip("/"), options=options or {})
