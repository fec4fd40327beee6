"""
Marks every test here. And the bots and people that most tests of the Matrix channel are about; a file that needs
others makes its own under the same names.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.element.client import node_modules
from tests.integration.matrix_bot import Bot, call
from tests.integration.secret_talk import secret_peers
from tests.npm_packages import NodeMissing


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test below this folder; pytest asks this file about no other."""
    item.add_marker("integration")


@pytest.fixture(scope="session")
def modules():
    """What an Element-like client is made of."""
    try:
        return node_modules()
    except NodeMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def make_bot(synapse, fresh_credentials, tmp_path):
    """Makes Matrix channels with accounts and folders of their own, at the homeserver or at ``url``."""

    def make(url=None, **settings):
        credentials = fresh_credentials("bot")
        return Bot(credentials, url or synapse.url, tmp_path / secrets.token_hex(4), **settings)

    return make


@pytest.fixture
async def alice(fresh_user):
    """A person on the homeserver."""
    return await call(fresh_user, "alice")


@pytest.fixture
async def bob(fresh_user):
    """Another one."""
    return await call(fresh_user, "bob")


@pytest.fixture
def make_peer(synapse, fresh_credentials, tmp_path):
    """Makes people whose client encrypts."""
    with secret_peers(synapse, fresh_credentials, tmp_path) as make:
        yield make


@pytest.fixture
def nia(make_peer):
    """A person whose client encrypts."""
    return make_peer()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes; only where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
