"""Grants in the database: kept, ended, erased with their people, and not restored."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from agent_core.provenance import untrusted_origin
from agent_core.tools.grants import Grant, GrantKind, Scope
from gateway.store.model import APPROVAL
from gateway.store.personal_rows import personal_transaction
from gateway.store.sql.erasure_statements import erase, find
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.sqlite.sqlite_restore import quarantine_open_work
from gateway.store.stores import Completion, Step
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_data import ROOM, accept, claim

GRANT = Grant(
    "g000001",
    Scope(GrantKind.CALL, "shell", '["make"]'),
    str(ROOM),
    ("@alice:hs.test",),
    "@owner:hs.test",
    EPOCH,
    EPOCH + timedelta(hours=1),
    origins=(untrusted_origin("web", "https://example.org", EPOCH),),
)


async def ask(store: SqliteQueue, native_id: str = "a") -> None:
    await accept(store, native_id)
    until = (EPOCH + timedelta(days=400)).isoformat()
    request = {"name": "a000001", "asked": [], "call": {"name": "shell"}, "until": until}
    await store.approvals.ask(
        await claim(store), Step(0, APPROVAL, "d", request, None), [], why="asks", delay_s=60
    )


async def fill(path: Path, *grants: Grant) -> None:
    async with await SqliteQueue.open(path, clock=ManualClock()) as store:
        for number, grant in enumerate(grants):
            await ask(store, f"${number}")
            await store.approvals.decide("a000001", {"verdict": "approved"}, grant=grant)
            await store.turns.complete(await claim(store), Completion())


async def kept(path: Path) -> list[str]:
    async with await SqliteQueue.open(path, clock=ManualClock()) as store:
        return [grant.id for grant in await store.grants.rows()]


@pytest.mark.parametrize("verdict", ["approved", "refused", "withdrawn"])
async def test_it_is_given_with_the_yes_and_only_with_it(tmp_path: Path, verdict: str) -> None:
    """Once, whole, in the transaction of the decision; a no that came first keeps it out."""
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock()) as store:
        await ask(store)
        if verdict != "approved":
            await store.approvals.decide("a000001", {"verdict": verdict})
        for grant in (GRANT, replace(GRANT, people=("@eve:hs.test",))):
            await store.approvals.decide("a000001", {"verdict": "approved"}, grant=grant)
        assert await store.grants.rows() == ([GRANT] if verdict == "approved" else [])
        assert await store.approvals.decide("a000002", {"verdict": "approved"}, grant=GRANT) is None


async def test_looking_notes_the_time_and_forgets_what_is_over(tmp_path: Path) -> None:
    """What was seen later than now is over, too."""
    path, minute = tmp_path / "gateway.db", timedelta(minutes=1)
    await fill(path, GRANT, replace(GRANT, id="g000002", until=EPOCH + 30 * minute))
    async with await SqliteQueue.open(path, clock=ManualClock()) as store:
        assert {grant.id for grant in await store.grants.expire(EPOCH + 10 * minute)} == {
            "g000001",
            "g000002",
        }
        (left,) = await store.grants.expire(EPOCH + 30 * minute)
        assert (left.id, left.seen_at) == ("g000001", EPOCH + 10 * minute)
        assert await store.grants.expire(EPOCH + 29 * minute) == []
        assert await store.grants.rows() == []


async def test_it_is_revoked_once(tmp_path: Path) -> None:
    """And nothing else with it."""
    path = tmp_path / "gateway.db"
    await fill(path, GRANT, replace(GRANT, id="g000002"))
    async with await SqliteQueue.open(path, clock=ManualClock()) as store:
        assert [await store.grants.revoke("g000001") for _ in range(2)] == [True, False]
    assert await kept(path) == ["g000002"]


@pytest.mark.parametrize(
    ("grant", "gone"),
    [(GRANT, True), (replace(GRANT, conversation="", people=("@ALICE:hs.test",)), False),
     (replace(GRANT, conversation="", people=("@bob:hs.test",), by="@alice:hs.test"), True),
     (replace(GRANT, conversation="matrix/x", people=("@bob:hs.test",)), False)],
)  # fmt: skip
async def test_it_is_found_and_erased_with_its_person(tmp_path: Path, grant: Grant, gone: bool) -> None:
    """Whom it is for, who gave it, or whose conversation it is of; others stay."""
    path = tmp_path / "gateway.db"
    await fill(path, grant)
    with personal_transaction(path) as db:
        found = find(db, ["@alice:hs.test"], [str(ROOM)], [])
    assert bool(found.grants) is gone
    with personal_transaction(path, "forget", change=True, compact=True) as db:
        erase(db, ["@alice:hs.test"], [str(ROOM)], [], now=EPOCH.timestamp())
    assert await kept(path) == ([] if gone else [grant.id])


async def test_a_restored_home_has_none(tmp_path: Path) -> None:
    """One that was revoked after the backup must not come back."""
    path = tmp_path / "gateway.db"
    await fill(path, GRANT)
    quarantine_open_work(path, backed_up_at=1.0, now=2.0, runs_once=lambda _: True)
    assert await kept(path) == []


async def test_a_damaged_one_grants_nothing(tmp_path: Path) -> None:
    """It is left out; the others hold."""
    path = tmp_path / "gateway.db"
    await fill(path, GRANT, replace(GRANT, id="g000002"))
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE grants SET people = 'no JSON' WHERE id = 'g000001'")
        db.commit()
    assert await kept(path) == ["g000002"]
