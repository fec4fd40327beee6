"""
What is sent from a machine that does not have the account, into an encrypted room: `squidbot send` in the home of one of
three real daemons, while the one that has the account, or the one that was told, is killed.

The oracle is what the person can read.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.daemon import REPOSITORY
from tests.kill.cluster_world import ACCOUNTS, MACHINES, Cluster
from tests.kill.tally import chance as chance_of

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]
TIMES = int(os.environ.get("SQUIDBOT_CLUSTER_SENDS", "6"))


def sent(home: Path, to: str, text: str) -> tuple[int, str]:
    """The command in the home of a machine; its exit code and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "send", to, text, "--home", str(home)],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_what_is_sent_from_another_machine_arrives_once_and_can_be_read(cluster: Cluster) -> None:
    """What the command has accepted arrives once, whoever dies; what it has refused arrives once at most."""
    chance = chance_of("sends")
    cluster.up()
    accepted: list[str] = []
    refused: list[str] = []
    for number in range(TIMES):
        cluster.until(lambda: cluster.restarted() and None not in map(cluster.owner, ACCOUNTS))
        account = chance.choice(list(cluster.rooms))
        room, owner = cluster.rooms[account], cluster.owner(account)
        others = [machine for machine in MACHINES if machine != owner]
        here = chance.choice(others)
        cluster.until(lambda here=here: cluster.daemons[here].asked("/livez")[0] == 200)
        if number % 2:
            room.peer.new_key(room.room)
        text = f"note {number} from home{here}"
        dies = ["owner first", "owner", "here", "nobody"][number % 4]
        if dies == "owner first" and owner is not None:
            cluster.kill(owner)
        code, said = sent(cluster.daemons[here].home, f"{account}:{room.room}", text)
        (accepted if code == 0 else refused).append(text)
        print(f"{number}: {account} of home{owner}, {dies} dies, {code} {said.strip()[:100]}", flush=True)
        if dies in {"owner", "here"}:
            time.sleep(chance.uniform(0, 0.2))
            cluster.kill(here if dies == "here" or owner is None else owner)

    def read() -> Counter[str]:
        return Counter(text for room in cluster.rooms.values() for text in room.answers())

    assert len(accepted) >= TIMES // 2, refused
    cluster.until(lambda: cluster.restarted() and set(accepted) <= set(read()))
    cluster.quiet()
    time.sleep(2)  # a second one would come now
    found = read()
    assert {text: found[text] for text in accepted} == dict.fromkeys(accepted, 1), cluster.logs()
    assert all(found[text] <= 1 for text in refused)
    assert not [text for text in found if text.startswith("<")], found
