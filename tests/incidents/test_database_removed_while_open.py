"""
Somebody deleted gateway.db under the running daemon. It went on accepting and acknowledging messages into the
file that had no name any more, said that all was well, and all of it was gone at the next start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import StoreUnavailable
from gateway.system.clock import SystemClock
from tests.contract.queue_data import accept


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock()) as opened:
        yield opened


@pytest.mark.parametrize("ending", ["", "-wal"])
async def test_nothing_is_accepted_into_a_file_without_a_name(
    store: SqliteQueue, tmp_path: Path, ending: str
) -> None:
    """What is not accepted is not acknowledged, and so not lost; the text says what to do."""
    await accept(store, "a")
    (tmp_path / f"gateway.db{ending}").unlink()
    with pytest.raises(StoreUnavailable, match="put it back, or restart"):
        await accept(store, "b")


@pytest.mark.parametrize("ending", ["", "-wal"])
async def test_another_file_in_its_place_is_not_taken_for_it(
    store: SqliteQueue, tmp_path: Path, ending: str
) -> None:
    """A backup that is copied over the open file needs a restart; until then nothing is accepted."""
    await accept(store, "a")
    file = tmp_path / f"gateway.db{ending}"
    copy = tmp_path / "copy"
    copy.write_bytes(file.read_bytes())
    copy.replace(file)
    with pytest.raises(StoreUnavailable, match="restart squidbot"):
        await accept(store, "b")


async def test_files_that_are_put_back_go_on(store: SqliteQueue, tmp_path: Path) -> None:
    """Nothing is lost of what was accepted before, and what waited is accepted then."""
    await accept(store, "a")
    (tmp_path / "away").mkdir()
    for file in list(tmp_path.glob("gateway.db*")):
        file.rename(tmp_path / "away" / file.name)
    with pytest.raises(StoreUnavailable):
        await accept(store, "b")
    for file in list((tmp_path / "away").iterdir()):
        file.rename(tmp_path / file.name)

    assert [row.message.native_id for row in await accept(store, "a", "b")] == ["b"]
