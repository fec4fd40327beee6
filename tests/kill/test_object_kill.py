"""
The real daemon on a real mail server with its files in an object store, killed at random while mails with files
come in and go out, while the store is away for a moment, and while it sweeps. The oracle reads the mailboxes and the
store.
"""

from __future__ import annotations

import hashlib
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_core.storage.session_files import named_files
from channels.attachments.file_storage import read_pieces
from channels.attachments.object_storage import _LATE_S, ObjectFiles
from devservers import MailPeer, MailServer
from gateway.store.sqlite.database_integrity import names_in_rows
from tests.daemon import Daemon
from tests.doubles.object_server import BUCKET, KEYS, Gate, ObjectServer
from tests.kill.conftest import random_kills
from tests.kill.tally import TALLY, THOROUGH
from tests.kill.tally import chance as chance_of
from tests.kill.test_mail_kill import People, settings

KILLS = max(20 if THOROUGH else 8, random_kills()[1])
MAILS = 24 if THOROUGH else 12
# Who saves a file whose removal was not answered waits until it is too late for that removal.
WITHIN_S = 120 + _LATE_S
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 10 * KILLS + WITHIN_S, func_only=True)]


def without_object(home: Path, storage: ObjectFiles) -> list[str]:
    """Files that a row or a history names and that the store does not have, byte for byte."""
    named = names_in_rows(home / "gateway.db", in_use=False)
    assert named is not None
    found = {file.path: file.size_bytes for file in storage.list_files()}
    missing = []
    for path in {*named, *named_files(home / "sessions")}:
        if path not in found:
            missing.append(path)
        else:
            for _ in read_pieces(storage, path, found[path]):
                pass
    return missing


def leave(storage: ObjectFiles, gate: Gate, content: bytes, folder: Path) -> str:
    """An old file that no message names; gives its path."""
    digest = hashlib.sha256(content).hexdigest()
    path = f"attachments/{digest[:2]}/{digest}.bin"
    temporary = folder / digest
    temporary.write_bytes(content)
    with temporary.open("rb") as file:
        storage.save(file.fileno(), temporary, path, len(content))
    gate.aged.add(path.removeprefix("attachments/"))
    return path


def wait_for_a_removal(gate: Gate) -> None:
    """Whoever asks about one object removes it, or saves it; not for long if the daemon does neither."""
    asked, until = gate.asked["HEAD"], time.monotonic() + 8
    while gate.asked["HEAD"] == asked and time.monotonic() < until:
        time.sleep(0.002)


def say(people: People, chance: random.Random, left: Callable[[bytes], object] = lambda _: None) -> None:
    """The next mail of the owner: with a file that is to come back, or without. ``left``: it has been there."""
    number = people.said + 1
    if chance.random() < 0.3:
        people.plain.append(people.owner.send(people.bot.address, f"#{number}", f"hello #{number}"))
        return
    content = chance.randbytes(chance.choice([10, 1_000, 400_000])) + str(number).encode()
    left(content)
    name = f"{number}.bin"
    sent = people.owner.send(
        people.bot.address, f"#{number}", "!sendfile", attachments=[(name, "a/b", content)]
    )
    people.files[sent] = content


@pytest.mark.parametrize("sweeps", [False, True], ids=["", "sweeping"])
def test_killed_at_random_with_files_in_an_object_store(
    mail_server: MailServer,
    fresh_mailbox: Callable[[str], MailPeer],
    object_server: ObjectServer,
    gate: Gate,
    tmp_path: Path,
    sweeps: bool,
) -> None:
    """
    Every mail one answer, every file as it was, and at no death a row without its object; also if what mails bring
    lay there before as an old file that nobody names, and is being removed just then.
    """
    chance = chance_of("objects")
    bot, alice, bob = fresh_mailbox("bot"), fresh_mailbox("alice"), fresh_mailbox("bob")
    people = People(bot, alice, bob)
    storage = object_server.storage(tmp_path.name)
    where = {"store": f"s3://{BUCKET}/{tmp_path.name}", "s3": {"endpoint": gate.url, **KEYS}}
    with Daemon(
        tmp_path / "home", {**settings(mail_server, bot, [alice, bob]), "attachments": where}
    ) as daemon:
        daemon.module = "tests.kill.sweeping_daemon" if sweeps else daemon.module
        daemon.up()
        orphans: list[str] = []

        def left(content: bytes) -> None:
            if sweeps:
                leave(storage, gate, content, tmp_path)

        for number in range(KILLS):
            if sweeps:
                orphans += [leave(storage, gate, chance.randbytes(20), tmp_path) for _ in range(10)]
            if people.said < MAILS:
                say(people, chance, left)
            gate.way = "away" if number % 4 == 3 else "open"
            if sweeps and gate.way == "open":
                wait_for_a_removal(gate)
            time.sleep(
                chance.choice([chance.uniform(0, 0.5), chance.uniform(0.5, 1.5), chance.uniform(1, 3)])
                if not sweeps
                else chance.uniform(0, 0.3)
            )
            daemon.kill()
            assert daemon.ended() == -signal.SIGKILL
            TALLY["of the daemon with files in an object store"] += 1
            assert without_object(daemon.home, storage) == []
            daemon.start()
        gate.way = "open"
        while people.said < MAILS:
            say(people, chance, left)
        assert people.problems_in_the_end(within_s=WITHIN_S) == [], daemon.log()[-6000:]
        assert daemon.work("outbox", "unknown") == 0
        assert len(people.files) >= MAILS // 3
        if sweeps:
            daemon.wait_until(lambda: not any(map(storage.find, orphans)))
            assert '"attachments.swept"' in daemon.log()
        daemon.terminate()
        assert daemon.ended() == 0
    assert without_object(daemon.home, storage) == []
    assert KEYS["secret_access_key"] not in daemon.log()
    assert list((daemon.home / "attachments").glob("*/*.bin")) == [], "nothing stays on this machine"
    storage.erase(next(storage.list_files()).path)
    assert len(without_object(daemon.home, storage)) == 1, "the control"
