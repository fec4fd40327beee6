"""What a person said is encoded by a running gateway, and forgotten with its vectors, in files and in PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
import yaml

from agent_core.storage.search_index import vectors
from agent_core.storage.search_index.vectors import missing_for_vectors
from tests.doubles.encoder import use_encoder
from tests.doubles.loopback import LoopbackServer
from tests.home_world import tree
from tests.integration.gateway_world import world
from tests.postgres_server import PostgresServer
from tests.unit.agent_core.storage.test_vectors import rows_of_vectors

REPOSITORY = Path(__file__).resolve().parents[2]
ALICE, BOB = "@alice:hs.test", "@bob:hs.test"
pytestmark = [pytest.mark.integration]


def _settings(store: str) -> dict[str, Any]:
    return {
        "owner": {"aliases": [ALICE]},
        "memory": {"vectors": True},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": {
                "enabled": True,
                "homeserver": "http://127.0.0.1:9",
                "user_id": "@bot:hs.test",
                "password": "none",
                "allow_from": [ALICE, BOB],
            }
        },
        **({"gateway": {"store": store}} if store else {}),
    }


def _vectors(root: Path, store: str, like: str) -> list[bytes]:
    """The vectors of the lines with a text."""
    if not store:
        return rows_of_vectors(root / "search.db", like)
    with psycopg.connect(store) as db:
        query = (
            "SELECT v.vectors FROM squidbot.all_vectors AS v JOIN squidbot.all_history AS h"
            " ON h.session = v.session AND h.seq = v.seq WHERE h.line LIKE %s"
        )
        return [bytes(raw) for (raw,) in db.execute(query, (f"%{like}%",))]


async def _until(true: Callable[[], Any]) -> None:
    with anyio.fail_after(120):
        while not true():
            await anyio.sleep(0.05)


@pytest.fixture(params=["files", "PostgreSQL"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "files":
        return ""
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.with_tables()


@pytest.fixture(params=["scripted", "encoder"])
def _encoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "scripted":
        use_encoder(monkeypatch)
    elif missing_for_vectors():
        pytest.skip("the extra recall is not installed")
    monkeypatch.setattr(vectors, "_SEARCH_LIMIT_S", 120.0)


@pytest.mark.usefixtures("_encoder")
async def test_what_is_forgotten_is_not_found_by_its_meaning(tmp_path: Path, store: str) -> None:
    root = tmp_path / "home"
    root.mkdir(mode=0o700)
    config = root / "squidbot.yaml"
    config.touch(mode=0o600)
    config.write_text(yaml.safe_dump(_settings(store)))
    given: dict[str, Any] = {"name": "matrix", "server": LoopbackServer()}
    given["settings"] = {key: value for key, value in _settings(store).items() if key != "channels"}
    async with world(root, **given) as before:
        await before.asked("Our cat is called Minka.", person=BOB)
        await before.asked("The train to Ulm was late.", person=ALICE)
        await _until(lambda: _vectors(root, store, "Minka") and _vectors(root, store, "Ulm"))
        found = await before.asked("!search pet", person=BOB)
        assert "Minka" in found.text
    erased, kept = _vectors(root, store, "Minka"), _vectors(root, store, "Ulm")
    assert all(any(raw in each for each in tree(root).values()) for raw in erased) or store

    done = subprocess.run(
        [sys.executable, "-m", "gateway", "forget", BOB, "--yes", "--home", str(root)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert _vectors(root, store, "Minka") == []
    for each in (*erased, b"Minka"):
        assert not any(each in content for content in tree(root).values())

    async with world(root, **given) as after:
        await _until(lambda: sorted(_vectors(root, store, "Ulm")) == sorted(kept))
        assert "Minka" not in (await after.asked("!search pet", person=BOB)).text
        assert "Ulm" in (await after.asked("!search railway", person=ALICE)).text
