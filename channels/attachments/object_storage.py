"""
Attachments as objects in an S3-compatible store, through obstore, which is imported when it is first needed.

    PREFIX/attachments/<aa>/<sha256><.ext>    a content
    PREFIX/attachments/owner                  to which squidbot it belongs
    PREFIX/attachments/probe/<random>         of a probe

One process of a home works, so nobody else writes. An object appears whole or not at all, and its time says
when it was last saved. Saving and removing one content take turns. A removal without an answer may be carried
out later than what is asked next, so it is never repeated, and that content is not saved until it is too late
for it. Errors name the place and what is wrong, never what the server says, which can hold anything.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from channels.attachments.attachment_storage import (
    FOLDER,
    PATH,
    Damaged,
    StorageUnreachable,
    StoredFile,
    check_path,
)

if TYPE_CHECKING:
    from obstore.store import S3Store

_REQUEST_LIMIT_S = 20.0
_RETRIES = 2
_LATE_S = 300.0
_PROBE_LEFT_S = 86_400.0
_IN_PARTS_BYTES = 8 * 1024 * 1024
_STATUS = re.compile(r"status code: (\d{3})")


class ObjectFiles:
    """Objects below a prefix of a bucket. ``options`` are obstore's; missing ones come from ``AWS_…``."""

    is_elsewhere = True

    def __init__(
        self, bucket: str, prefix: str, *, options: Mapping[str, str], limit_s: float = _REQUEST_LIMIT_S
    ) -> None:
        self._bucket, self._prefix = bucket, prefix
        self._options: dict[str, Any] = dict(options)
        self._limit_s = limit_s
        self._clients: dict[int, S3Store] = {}
        self._turns = [threading.Lock() for _ in range(256)]
        self._unanswered: dict[str, float] = {}
        """Contents whose removal was not answered, and when."""
        self.name = f"the object store s3://{bucket}/{prefix}".rstrip("/")

    def prepare(self) -> None:
        """Check that the bucket exists, and remove what a probe has left that was cut off."""
        with self._asking() as api:
            for page in api.list(self._client(), f"{FOLDER}/probe"):
                for one in page:
                    if time.time() - one["last_modified"].timestamp() > _PROBE_LEFT_S:
                        api.delete(self._client(), one["path"])

    def save(self, handle: int, temporary: Path, path: str, size: int) -> bool:
        """Store a content durably; False if it existed (now as new)."""
        with self._turn(path):
            if time.monotonic() - self._unanswered.get(path, -_LATE_S) < _LATE_S:
                raise StorageUnreachable(f"{self.name} has not said whether it removed this file")
            found = self.find(path)
            with self._asking() as api, os.fdopen(os.dup(handle), "rb") as file:
                large = size >= _IN_PARTS_BYTES
                file.seek(0)
                content = file if large else file.read()
                api.put(self._client(), path, content, use_multipart=large, max_concurrency=2)
            return found is None or found.size_bytes != size

    def read(self, path: str, size: int, *, offset: int, max_bytes: int) -> bytes:
        """Read up to ``max_bytes`` from ``offset``. Raises FileNotFoundError, or Damaged (other size)."""
        found, start = self.find(path), max(0, offset)
        end = min(size, start + max(0, max_bytes))
        if found is None:
            raise FileNotFoundError(path)
        if found.size_bytes != size:
            raise Damaged(path)
        with self._asking() as api:
            content = bytes(api.get_range(self._client(), path, start=start, end=end)) if end > start else b""
        if len(content) < end - start:
            raise Damaged(path)
        return content

    def find(self, path: str) -> StoredFile | None:
        """Look a content up."""
        key = check_path(path)
        with self._asking() as api:
            try:
                found = api.head(self._client(), key)
            except FileNotFoundError:
                self.prepare()  # the answer is the same if the bucket is missing
                return None
        return StoredFile(path, found["last_modified"].timestamp(), found["size"])

    def list_files(self) -> Iterator[StoredFile]:
        """List all contents, a page at a time."""
        with self._asking() as api:
            for page in api.list(self._client(), FOLDER):
                for one in page:
                    if PATH.fullmatch(one["path"]):
                        yield StoredFile(one["path"], one["last_modified"].timestamp(), one["size"])

    def remove(self, file: StoredFile) -> bool:
        """Remove a content unless it was saved again after it was listed."""
        with self._turn(file.path):
            found = self.find(file.path)
            # A listing may tell parts of a second, and an answer about one object does not.
            if found is None or int(found.saved_at) != int(file.saved_at):
                return False
            self._unanswered[file.path] = time.monotonic()
            with self._asking() as api:
                api.delete(self._client(retries=0), file.path)
            del self._unanswered[file.path]
        return True

    def erase(self, path: str) -> bool:
        """Remove a content, whenever it was saved. Returns whether it existed."""
        found = self.find(path)
        return found is not None and self.remove(found)

    def owner(self, wanted: str) -> str:
        """Return the squidbot that the storage belongs to: the first that asked."""
        key = f"{FOLDER}/owner"
        with self._asking() as api:
            try:
                found = api.get(self._client(), key)
            except FileNotFoundError:
                api.put(self._client(), key, wanted.encode("ascii"))
                found = api.get(self._client(), key)
            return bytes(found.bytes()).decode("ascii", "replace")

    def probe(self) -> None:
        """Write, read and remove an object."""
        key, content = f"{FOLDER}/probe/{secrets.token_hex(16)}", secrets.token_bytes(32)
        with self._asking() as api:
            api.put(self._client(), key, content)
            found = bytes(api.get(self._client(), key).bytes())
            api.delete(self._client(), key)
        if found != content:
            raise StorageUnreachable(f"{self.name} returns something other than what was written")

    def _turn(self, path: str) -> threading.Lock:
        return self._turns[int(check_path(path).split("/")[1], 16)]

    def _client(self, retries: int = _RETRIES) -> S3Store:
        if retries not in self._clients:
            from obstore.store import S3Store  # noqa: PLC0415 - it is 6 MiB

            names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
            endpoint = self._options.get("endpoint") or next(filter(None, map(os.environ.get, names)), "")
            limit, is_plain = timedelta(seconds=self._limit_s), endpoint.startswith("http://")
            self._clients[retries] = S3Store(
                self._bucket,
                prefix=self._prefix or None,
                client_options={"timeout": limit, "allow_http": is_plain},
                retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=15)},
                **self._options,
            )
        return self._clients[retries]

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """The library, with its errors as `StorageUnreachable`."""
        try:
            import obstore  # noqa: PLC0415
            import obstore.exceptions  # noqa: PLC0415
        except ImportError as error:
            raise StorageUnreachable(
                f"{self.name} needs the extra s3, which is not installed; in the clone: pip install '.[s3]'"
            ) from error
        try:
            yield obstore
        except StorageUnreachable:
            raise
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise StorageUnreachable(f"{self.name} {_error_text(error)}") from error


def _error_text(error: Exception) -> str:
    """Return what is wrong, and whether it passes or somebody has to do something."""
    status = next(iter(_STATUS.findall(str(error))), "")
    if isinstance(error, FileNotFoundError) or status == "404":
        return "does not exist, or these credentials may not see it; correct attachments.store"
    if status in ("401", "403"):
        return f"does not accept the credentials (status {status}); correct attachments.s3"
    if status:
        return f"cannot do it now (status {status})"
    return f"cannot be reached, or broke off ({type(error).__name__})"
