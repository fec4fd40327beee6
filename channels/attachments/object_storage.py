"""
Stores attachments as objects in an S3-compatible store, through obstore, which is imported when it is first
needed.

    PREFIX/attachments/<aa>/<sha256><.ext>           a content
    PREFIX/attachments/shares/<digest>/<file>        an empty object: the file counts on that share
    PREFIX/attachments/removing/<file>               an empty object: the sweeper is about to remove it
    PREFIX/attachments/owner                         to which squidbot it belongs
    PREFIX/attachments/probe/<random>                of ``squidbot check``

Theory of operation. A content is put under a condition: nothing is there yet. If something is there and is as
long, it is the same content; if it is old it is written once more, so that its time says when it was last
saved. An object store cannot remove an object "unless it was written again", so the sweeper notes first what
it is about to remove, and then looks whether it is still the old one; whoever saves looks for such a note
after writing, and writes again when the note is gone. One of both sees the other. A note stays that a dead
sweeper has left, or one that does not know what became of its removal; it counts for `_REMOVING_FOR_S`.

A store that does not know conditions (status 501) is asked first whether something is there. Two that write
at the same time write the same then, except for the owner: that is the last one.

Each request has a limit and a few repetitions. A removal is repeated only when the store answers that it has
not done it: an attempt without an answer could be carried out after a later one, on what was saved meanwhile.
Errors name the place and what is wrong, and none of what the
server or the library says in its own words: that can hold anything.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
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
_DELETE_AGAIN_S = 1.0
_REMOVING_FOR_S = 300.0
_REMOVING_WAIT_S = 20.0
_REMOVAL_CHECK_S = 0.2
_NOTE_LEFT_AFTER_S = 86_400.0
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")


class ObjectFiles:
    """
    A storage of objects below a prefix of one bucket.

    ``options`` are obstore's, missing ones come from ``AWS_…``; ``limit_s`` is per request; content older
    than ``again_after_s`` is written again when saved again.
    """

    is_shared = True

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        options: Mapping[str, str],
        limit_s: float = _REQUEST_LIMIT_S,
        again_after_s: float = 3600.0,
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._options = dict(options)
        self._limit_s = limit_s
        self._again_after_s = again_after_s
        self._made: dict[int, S3Store] = {}
        self._knows_conditions = True
        self.name = f"the object store s3://{bucket}/{prefix}".rstrip("/")

    def prepare(self) -> None:
        """Check that the bucket exists, so that a wrong name is reported; remove old notes of removals."""
        now = time.time()
        for key, at, _ in self._listed(f"{FOLDER}/removing"):
            if now - at > _NOTE_LEFT_AFTER_S:
                with self._asking() as api:
                    self._delete(api, key)

    def save(self, handle: int, temporary: Path, path: str, size: int) -> bool:
        """Store a content; see the module."""
        is_new = False
        until = time.monotonic() + _REMOVING_WAIT_S
        while True:
            is_new = self._write(handle, check_path(path), size) or is_new
            if not self._is_being_removed(path):
                return is_new
            while self._is_being_removed(path):
                if time.monotonic() > until:
                    raise StorageUnreachable(f"{self.name} is removing this file right now")
                time.sleep(_REMOVAL_CHECK_S)

    def read(self, path: str, size: int, *, offset: int, max_bytes: int) -> bytes:
        """Read a part of a content."""
        start = max(0, offset)
        end, key = min(size, start + max(0, max_bytes)), check_path(path)
        with self._asking(missing_is_away=False) as api:
            try:
                if end <= start:
                    meta, content = api.head(self._store(), key), b""
                else:
                    found = api.get(self._store(), key, options={"range": (start, end)})
                    meta, content = found.meta, bytes(found.bytes())
            except FileNotFoundError:
                self._exists()
                raise
            except api.exceptions.BaseError as error:
                if _STATUS.findall(str(error))[:1] == ["416"]:  # it is shorter than that
                    raise Damaged(path) from error
                raise
        if meta["size"] != size or len(content) != max(0, end - start):
            raise Damaged(path)
        return content

    def find(self, path: str) -> StoredFile | None:
        """Look a content up."""
        key = check_path(path)
        found = self._head(key)
        if found is None:
            self._exists()
            return None
        return StoredFile(path, found["last_modified"].timestamp(), found["size"])

    def list_files(self) -> Iterator[StoredFile]:
        """List all contents, a page at a time."""
        for key, at, size in self._listed(FOLDER):
            if PATH.fullmatch(key):
                yield StoredFile(key, at, size)

    def remove(self, file: StoredFile) -> bool:
        """Remove a content unless it was saved again; see the module."""
        key, note = check_path(file.path), self._note(file.path)
        with self._asking(missing_is_away=False) as api:
            began = time.monotonic()
            api.put(self._store(), note, b"", mode="overwrite")
            is_unknown = False
            try:
                try:
                    found = api.head(self._store(), key)
                except FileNotFoundError:
                    return False
                late = time.monotonic() - began > 60.0
                # A listing may tell parts of a second, and an answer about one object does not.
                if late or int(found["last_modified"].timestamp()) != int(file.saved_at):
                    return False
                is_unknown = True  # it may be carried out later than it is answered
                self._delete(api, key)
                is_unknown = False
                return True
            finally:
                if not is_unknown:
                    self._delete(api, note)

    def erase(self, path: str) -> bool:
        """Remove a content."""
        if self.find(path) is None:
            return False
        with self._asking() as api:
            self._delete(api, path)
        return True

    def marks(self) -> Iterator[tuple[str, str, float]]:
        """List the files that count on shares."""
        for key, at, _ in self._listed(f"{FOLDER}/shares"):
            parts = PurePosixPath(key).parts
            if len(parts) == 4:
                yield parts[2], parts[3], at

    def mark(self, whose: str, name: str) -> bool:
        """Note in an empty object that a content counts on a person's share."""
        return self._put_new(f"{FOLDER}/shares/{whose}/{name}", b"")

    def unmark(self, whose: str, name: str) -> None:
        """Remove that note."""
        with self._asking() as api:
            self._delete(api, f"{FOLDER}/shares/{whose}/{name}")

    def forget(self, whose: str) -> None:
        """Remove all notes of a person."""
        keys = [key for key, _, _ in self._listed(f"{FOLDER}/shares/{whose}")]
        with self._asking() as api:
            for key in keys:
                self._delete(api, key)

    def owner(self, wanted: str) -> str:
        """Read the owner's name from a small object, which the first call makes."""
        key = f"{FOLDER}/owner"
        self._put_new(key, wanted.encode("ascii"))
        with self._asking() as api:
            return bytes(api.get(self._store(), key).bytes()).decode("ascii", "replace")

    def probe(self) -> None:
        """Write an object, read it, and remove it."""
        key, content = f"{FOLDER}/probe/{secrets.token_hex(16)}", secrets.token_bytes(32)
        self._exists()
        with self._asking() as api:
            api.put(self._store(), key, content, mode="overwrite")
            found = bytes(api.get(self._store(), key).bytes())
            self._delete(api, key)
        if found != content:
            raise StorageUnreachable(f"{self.name} returns something other than what was written")

    # ── inside ──

    def _write(self, handle: int, key: str, size: int) -> bool:
        """Put it if it is not there as it should be, and lately."""
        is_small = size < 8 * 1024 * 1024
        if is_small and self._put_new(key, os.pread(handle, size, 0)):
            return True
        found = self._head(key)
        was_there = found is not None and found["size"] == size
        if was_there and _age_s(found) < self._again_after_s:
            return False
        with self._asking() as api, os.fdopen(os.dup(handle), "rb") as file:
            file.seek(0)
            api.put(self._store(), key, file, use_multipart=not is_small, max_concurrency=2)
        return not was_there

    def _put_new(self, key: str, content: bytes) -> bool:
        """Put it unless something is there."""
        if self._knows_conditions:
            with self._asking() as api:
                try:
                    api.put(self._store(), key, content, mode="create")
                except api.exceptions.AlreadyExistsError:
                    return False
                except api.exceptions.BaseError as error:
                    if not _is_not_implemented(str(error)):
                        raise
                    self._knows_conditions = False
                else:
                    return True
        if self._head(key) is not None:
            return False
        with self._asking() as api:
            api.put(self._store(), key, content, mode="overwrite")
        return True

    def _head(self, key: str) -> Any:
        with self._asking(missing_is_away=False) as api:
            try:
                return api.head(self._store(), key)
            except FileNotFoundError:
                return None

    def _is_being_removed(self, path: str) -> bool:
        found = self._head(self._note(path))
        return found is not None and _age_s(found) < _REMOVING_FOR_S

    def _note(self, path: str) -> str:
        return f"{FOLDER}/removing/{PurePosixPath(path).name}"

    def _delete(self, api: Any, key: str) -> None:
        """Remove an object; repeated only after an answer that it was not done."""
        for tries_left in reversed(range(_RETRIES + 1)):
            try:
                api.delete(self._store(retries=0), key)
                return
            except api.exceptions.BaseError as error:
                if not tries_left or _STATUS.findall(str(error))[:1] not in (["429"], ["503"]):
                    raise
                time.sleep(_DELETE_AGAIN_S)

    def _listed(self, prefix: str) -> Iterator[tuple[str, float, int]]:
        with self._asking() as api:
            pages = iter(api.list(self._store(), prefix))
        while True:
            with self._asking():
                page = next(pages, None)
            if page is None:
                return
            for one in page:
                yield one["path"], one["last_modified"].timestamp(), one["size"]

    def _exists(self) -> None:
        """Check that the bucket exists: the answer about an object says the same of a missing one."""
        with self._asking() as api:
            next(iter(api.list(self._store(), f"{FOLDER}/probe", chunk_size=1)), None)

    def _store(self, retries: int = _RETRIES) -> S3Store:
        if retries not in self._made:
            from obstore.store import S3Store  # noqa: PLC0415 - it is 6 MiB

            limit, connect = timedelta(seconds=self._limit_s), timedelta(seconds=5.0)
            options: dict[str, Any] = dict(self._options)
            endpoint = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3", "")
            endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT", "")
            self._made[retries] = S3Store(
                self._bucket,
                prefix=self._prefix or None,
                client_options={
                    "timeout": limit,
                    "connect_timeout": min(connect, limit),
                    "allow_http": endpoint.startswith("http://"),
                },
                retry_config={
                    "max_retries": retries,
                    "retry_timeout": timedelta(seconds=15.0),
                    "backoff": {
                        "init_backoff": timedelta(seconds=0.2),
                        "max_backoff": timedelta(seconds=3),
                        "base": 2,
                    },
                },
                **options,
            )
        return self._made[retries]

    @contextmanager
    def _asking(self, *, missing_is_away: bool = True) -> Iterator[Any]:
        """The library, with its errors as `StorageUnreachable`; a missing object can be its own error."""
        try:
            import obstore  # noqa: PLC0415
            import obstore.exceptions  # noqa: PLC0415
        except ImportError as error:
            raise StorageUnreachable(
                f"{self.name} needs the extra s3, which is not installed; in the clone: pip install '.[s3]'"
            ) from error
        try:
            yield obstore
        except (Damaged, StorageUnreachable):
            raise
        except FileNotFoundError as error:
            if not missing_is_away:
                raise
            raise StorageUnreachable(
                f"{self.name} does not exist, or these credentials may not see it"
            ) from error
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise StorageUnreachable(f"{self.name} {_error_text(error)}") from error


def _age_s(found: Any) -> float:
    """Return an object's age in seconds, measured by two clocks."""
    return float((datetime.now(UTC) - found["last_modified"]).total_seconds())


def _is_not_implemented(text: str) -> bool:
    return _STATUS.findall(text)[:1] == ["501"] or "NotImplemented" in _CODE.findall(text)


def _error_text(error: Exception) -> str:
    text = str(error)
    status = _STATUS.findall(text)
    codes = _CODE.findall(text)
    code = f", {codes[0]}" if codes else ""
    if status and status[0] in ("401", "403"):
        return f"does not accept the credentials (status {status[0]}{code})"
    if "NoSuchBucket" in codes:
        return "does not exist (NoSuchBucket)"
    if status:
        return f"cannot do it now (status {status[0]}{code})"
    return f"cannot be reached, or broke off ({type(error).__name__})"
