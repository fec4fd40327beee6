"""Storages of attachments of each kind, and how tests put something into them."""

from __future__ import annotations

import hashlib
import os
import secrets

import pytest

from channels.attachments import LocalFiles

KINDS = ("home", "folder", "s3")


@pytest.fixture(name="make")
def storage_maker(tmp_path, request):
    """Makes storages: the same place for the same name."""

    def made(kind, name="one"):
        if kind == "s3":
            server = request.getfixturevalue("object_server")
            return server.storage(f"{tmp_path.name}/{name}", limit_s=3)
        (tmp_path / name / "attachments").mkdir(parents=True, exist_ok=True)
        return LocalFiles(tmp_path / name, elsewhere=kind == "folder")

    return made


@pytest.fixture(name="storage", params=KINDS)
def any_storage(request, make):
    one = make(request.param)
    one.prepare()
    return one


def path_of(content, ending=".bin"):
    digest = hashlib.sha256(content).hexdigest()
    return f"attachments/{digest[:2]}/{digest}{ending}"


def put(storage, content, folder):
    temporary = folder / secrets.token_hex(8)
    temporary.write_bytes(content)
    handle = os.open(temporary, os.O_RDONLY)
    try:
        return storage.save(handle, temporary, path_of(content), len(content))
    finally:
        os.close(handle)


def read(storage, content, offset=0, max_bytes=1 << 30):
    return storage.read(path_of(content), len(content), offset=offset, max_bytes=max_bytes)
