"""`!export me` and `!forget me`: who gets what, and that it is done once, over everything that breaks off."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.errors import StorageUnavailable
from gateway.app.daemon import _Ending, _restart_for_erasures
from gateway.app.erasures import run_erasure_requests
from gateway.operations.privacy import person_erasure
from gateway.operations.privacy.erasure_requests import (
    ErasureRequest,
    add_request,
    due_requests,
    next_due,
    next_night,
)
from gateway.settings import Settings
from gateway.system.home import Home
from gateway.system.sd_notify import Notifier
from tests.daemon import Daemon
from tests.doubles.loopback import LoopbackServer
from tests.proactive_world import ANN, BOB, Harness, house

pytestmark = pytest.mark.smoke

BOB_MAIL, CID, ROOM = "bob@mail.test", "@cid:hs.test", "room"
PEOPLE = {"bob": {"addresses": [BOB, BOB_MAIL]}}
QUIET: Any = {"heartbeat": {"enabled": False}, "checklist": None}
REQUESTS = "state/erasure-requests.json"


def home_of(root: Path, **servers: Any) -> Any:
    return house(root, **QUIET, groups=(ROOM,), more={"people": PEOPLE}, **servers)


async def said_in_mail(home: Harness, person: str, text: str) -> str:
    place = f"dm-{person}"
    before = len(home.mail.seen(place))
    home.mail.say(person, text)
    return (await home.mail.answers(before + 1, conversation=place))[-1].text


async def exported(home: Harness, person: str) -> str:
    """All texts of the archive that a person is sent."""
    told = await home.asked(person, "!export me")
    assert "all that I have stored about you" in told, told
    (file,) = home.chat.seen(f"dm-{person}")[-1].attachments
    (path,) = (home.checklist.parents[1] / "attachments").rglob(f"*{file.sha256[4:]}*")
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        return "\n".join(archive.read(name).decode("utf-8", "replace") for name in archive.namelist())


async def code_for(home: Harness, person: str) -> str:
    told = await home.asked(person, "!forget me")
    return told.rpartition("`!forget me ")[2].rstrip("`")


async def test_everything_of_a_person_and_nothing_of_others(tmp_path: Path) -> None:
    """From all addresses of theirs; the folder in which it is put together is gone afterwards."""
    async with home_of(tmp_path) as home:
        await home.asked(ANN, "annword is mine")
        await home.asked(BOB, "bobword is mine")
        await home.asked(CID, "cidword is mine")
        await said_in_mail(home, BOB_MAIL, "mailword is mine")
        await home.asked(CID, "cidroom is here", conversation=ROOM)
        await home.asked(BOB, "bobroom is here", conversation=ROOM)
        text = await exported(home, BOB)
        assert all(word in text for word in ("bobword", "mailword", "bobroom"))
        assert not any(word in text for word in ("annword", "cidword", "cidroom"))
        for __ in range(2):
            assert "PK" not in await exported(home, BOB)  # an export has no earlier one in it
        mine = await exported(home, ANN)
        assert "annword" in mine and "bobword" not in mine
        assert not (tmp_path / "state/exporting").exists()


@pytest.mark.parametrize("command", ["!export me", "!forget me", "!forget me abc123", "!forget cancel"])
async def test_only_in_private_and_only_with_proof(tmp_path: Path, command: str) -> None:
    async with home_of(tmp_path) as home:
        await home.asked(BOB, "bobword is mine")
        assert "private conversation" in await home.asked(BOB, command, conversation=ROOM)
        assert home.chat.seen(ROOM)[-1].attachments == ()
        home.chat.say(BOB, command, verified=False)
        await home.asked(CID, "hello")
        assert len(home.chat.seen(f"dm-{BOB}")) == 1
        assert not (tmp_path / REQUESTS).exists()


async def test_it_is_confirmed_with_the_code_of_the_same_person(tmp_path: Path) -> None:
    """Nobody else's code, no wrong one, and each once; the owner hears of it, and it can be taken back."""
    async with home_of(tmp_path) as home:
        await home.asked(ANN, "hello")
        theirs = await code_for(home, CID)
        code = await code_for(home, BOB)
        for wrong in (theirs, "abc123", "yes", "me"):
            assert "not the code" in await home.asked(BOB, f"!forget me {wrong}")
        assert not (tmp_path / REQUESTS).exists()
        assert "I erase it on" in await home.asked(BOB, f"!forget me `{code}`")
        assert "I erase it on" in await home.asked(BOB, f"!forget me {code}")  # said twice
        (request,) = json.loads((tmp_path / REQUESTS).read_text())
        assert request["addresses"] == [BOB, BOB_MAIL]
        assert datetime.fromisoformat(request["due"]) > datetime.now(UTC)
        await home.until(lambda: any("asked me to forget" in one.text for one in home.alerts()))
        assert "Nothing of yours" in await home.asked(CID, "!forget cancel")
        assert "I forget nothing" in await home.asked(BOB, "!forget cancel")
        assert not (tmp_path / REQUESTS).exists()
        assert "not the code" in await home.asked(BOB, f"!forget me {code}")
        assert "You are my owner" in await home.asked(ANN, "!forget me")
        assert "`!undo`" in await home.asked(BOB, "!forget")


async def said_and_requested(root: Path) -> LoopbackServer:
    """Two people have said something, and one of them is to be forgotten at the next start."""
    async with home_of(root) as home:
        chat = home.chat
        await home.asked(BOB, "bobword is mine")
        await said_in_mail(home, BOB_MAIL, "mailword is mine")
        await home.asked(CID, "cidword is mine")
        await home.asked(BOB, f"!forget me {await code_for(home, BOB)}")
    path = root / REQUESTS
    path.write_text(
        path.read_text().replace(json.loads(path.read_text())[0]["due"], "2020-01-01T04:00:00+00:00")
    )
    return chat


def stored(root: Path) -> str:
    return "\n".join(
        path.read_bytes().decode("utf-8", "replace") for path in root.rglob("*") if path.is_file()
    )


async def carry_out(root: Path) -> None:
    from anyio import to_thread

    await to_thread.run_sync(run_erasure_requests, Settings.model_validate({"people": PEOPLE}), Home(root))


async def test_the_next_start_after_its_time_forgets(tmp_path: Path) -> None:
    """All addresses of the person, and nobody else; the control: before it, their words are there."""
    chat = await said_and_requested(tmp_path)
    assert all(word in stored(tmp_path) for word in ("bobword", "mailword", "cidword"))
    await carry_out(tmp_path)
    assert not (tmp_path / REQUESTS).exists()
    left = stored(tmp_path)
    assert "bobword" not in left and "mailword" not in left and "cidword" in left
    async with home_of(tmp_path, chat=chat) as home:
        assert "Nothing has been said here yet" in await home.asked(BOB, "!export")
        assert "cidword" in await exported(home, CID)


@pytest.mark.parametrize("error", [OSError("the disk is full"), StorageUnavailable("it is damaged")])
async def test_one_that_breaks_off_is_completed_by_the_next_start(
    tmp_path: Path, monkeypatch: Any, error: Exception
) -> None:
    """The daemon starts all the same; what was begun is noted, and the request stays."""
    await said_and_requested(tmp_path)

    def broken(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(person_erasure, "_forget_documents", broken)
        await carry_out(tmp_path)
    assert (tmp_path / REQUESTS).exists()
    await carry_out(tmp_path)
    assert not (tmp_path / REQUESTS).exists()
    assert "bobword" not in stored(tmp_path)
    assert not list((tmp_path / "state").glob("forgetting-*"))


async def test_the_owner_hears_of_one_that_failed(tmp_path: Path) -> None:
    """The control: nobody is left over at a start, and nothing is said."""
    async with home_of(tmp_path) as home:
        await home.asked(ANN, "hello")
        told = [0, 0]
        for left_over in (0, 1):
            if left_over:
                over = datetime.now(UTC) - timedelta(days=1)
                add_request(tmp_path, ErasureRequest([BOB], "a", over.isoformat()))
            async with anyio.create_task_group() as tasks:
                ending = _Ending(at_terminal=False)
                tasks.start_soon(_restart_for_erasures, home.built, Home(tmp_path), Notifier(), ending)
                if left_over:
                    await home.until(lambda: home.alerts())
                await anyio.wait_all_tasks_blocked()
                told[left_over] = sum(f"could not erase what {BOB}" in one.text for one in home.alerts())
                tasks.cancel_scope.cancel()
    assert told == [0, 1]


def test_a_request_waits_for_the_night(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    now = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
    assert next_night(now, UTC) == now.replace(hour=4)
    assert next_night(now.replace(hour=4), UTC) == now.replace(day=1, month=12, hour=4)
    due = next_night(now, UTC)
    add_request(tmp_path, ErasureRequest([BOB], "a", due.isoformat()))
    add_request(tmp_path, ErasureRequest([CID], "b", (due + timedelta(days=1)).isoformat()))
    assert [one.addresses for one in due_requests(tmp_path, due)] == [(BOB,)]
    assert due_requests(tmp_path, now) == []
    assert next_due(tmp_path, now) == due
    assert next_due(tmp_path, due) == due + timedelta(days=1)
    (tmp_path / REQUESTS).write_text("{broken")
    assert due_requests(tmp_path, due) == [] and next_due(tmp_path, now) is None


def test_a_daemon_restarts_for_it_once(tmp_path: Path) -> None:
    """It stays the same process, and one whose time was over at its start begins anew for nothing."""
    root = tmp_path / "home"
    with Daemon(root, {}) as daemon:
        daemon.up()
        before = daemon.log().count("gateway.started")
        over = datetime.now(UTC) - timedelta(days=1)
        add_request(
            root, ErasureRequest([CID], "b", over.isoformat())
        )  # as one that could not be carried out
        add_request(root, ErasureRequest([BOB], "a", (datetime.now(UTC) + timedelta(seconds=2)).isoformat()))
        daemon.wait_until(lambda: daemon.log().count("gateway.started") > before, within_s=150)
        assert daemon.log().count("erasure.done") == 2
        assert daemon.log().count("gateway.restarting") == 1
        assert not (root / REQUESTS).exists()
        daemon.terminate()
        assert daemon.ended() == 0
