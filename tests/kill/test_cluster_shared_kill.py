"""
Two gateways on one database with the owner's shared conversation on two accounts, another person on a third, and all
answers spoken: either is killed, or frozen beyond its lease, at random moments.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from agent_core.messages import SPEECH
from devservers import SpeechServer
from gateway.queue.shared import SHARED
from tests.kill.conftest import random_kills
from tests.kill.scenario import Nursery
from tests.kill.tally import chance as chance_of
from tests.kill.test_cluster_kill import LEASE_S, Cluster
from tests.kill.test_speech_kill import People, Voice, _number, number_of_sound
from tests.postgres_server import PostgresServer

KILLS = max(6, random_kills()[1])
pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(300 + 30 * KILLS)]
OWNERS = ("matrix", "matrix1")
ANN, BOB = "@ann:hs.test", "@bob:hs.test"
NUMBER = re.compile(r"#(\d+)")


class House(People):
    """What comes of a cluster's talk, by the oracle of those who listen."""

    def __init__(self, cluster: Cluster, voice: SpeechServer) -> None:
        self.cluster = cluster
        self.voice = voice
        self.places: dict[int, tuple[str, str]] = {}
        self.asked: list[tuple[int, int]] = []
        self.in_hand: list[set[int]] = []
        self.noted = 0

    @property
    def said(self) -> int:  # type: ignore[override]
        return len(self.places)

    def talk(self, account: str, words: str = "") -> None:
        """The owner, or on the third account Bob, says the next thing."""
        person = ANN if account in OWNERS else BOB
        number = self.cluster.say(account, person, words)
        self.places[number] = (account, f"dm-{person}")

    def came(self) -> Counter[tuple[str, int]]:
        found: Counter[tuple[str, int]] = Counter()
        for name, server in self.cluster.servers.items():
            server.refresh()
            for each in server.seen():
                told = each.context.get(SPEECH) if each.attachments else None
                number = (
                    number_of_sound(told["duration_ms"]) if isinstance(told, dict) else _number(each.text)
                )
                here = self.places.get(number) == (name, each.conversation)
                found["voice" if told else "text", number if here else -1] += 1
        return found

    def problems(self) -> list[str]:
        """Also what stands in the one history in another order, or twice."""
        lines = self.history()
        mine = [number for number, (account, _) in self.places.items() if account in OWNERS]
        wrong = super().problems()
        if sorted(lines) != sorted(f"{who}{number}" for number in mine for who in "ua"):
            wrong.append(f"the history has {lines}")
        wrong += [
            f"{one} is followed by {two}"
            for one, two in zip(lines[::2], lines[1::2], strict=False)
            if one[1:] != two[1:]
        ]
        return wrong

    def history(self) -> list[str]:
        """Who said which number in the one history."""
        query = "SELECT line FROM squidbot.all_history WHERE session = %s ORDER BY seq"
        with psycopg.connect(self.cluster.url) as db:
            lines = [json.loads(line) for (line,) in db.execute(query, (str(SHARED),)).fetchall()]
        return [
            f"{line['role'][0]}{found[1]}"
            for line in lines
            if line["role"] in ("user", "assistant") and (found := NUMBER.search(line["content"]))
        ]

    def death(self) -> None:
        """Note what was being spoken by any process; one of them has just stopped."""
        query = "SELECT payload FROM squidbot.all_outbox WHERE channel = 'speech' AND state IN ('sending', 'uncertain')"
        with psycopg.connect(self.cluster.url) as db:
            rows = db.execute(query).fetchall()
        time.sleep(0.1)  # what had been sent has been counted
        self.note()
        self.in_hand.append({_number(json.loads(payload)["text"]) for (payload,) in rows})

    def note(self) -> None:
        for request in self.voice.asked[self.noted :]:
            self.asked.append((len(self.in_hand), _number(request["input"])))
        self.noted = len(self.voice.asked)

    def quiet(self) -> None:
        """Wait until everything was said and spoken."""
        self.cluster.until(lambda: self.cluster.restart(0, 1) and not self.unspoken(), 150)
        time.sleep(1)  # a second one would come now
        self.note()

    def together(self) -> bool:
        """Whether one process has all that belongs together, or nobody has it now."""
        owners = self.cluster.owners()
        return len({owners.get(name, "") for name in (*OWNERS, "")}) == 1


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    with Nursery() as one, Nursery() as two:
        yield [one, two]


@pytest.fixture
def house(nurseries: list[Nursery], postgres: PostgresServer, tmp_path: Path) -> Iterator[House]:
    (tmp_path / "files" / "attachments").mkdir(parents=True)
    with Voice(wait_s=0.2) as voice:
        cluster = Cluster(
            tmp_path, nurseries, postgres, accounts=("matrix", "matrix1", "matrix2"),
            shared=True, owned=OWNERS, owner=ANN, speech=voice.api_base,
        )  # fmt: skip
        yield House(cluster, voice)
        for machine in cluster.living():
            cluster.signal(machine, signal.SIGKILL)


def test_one_conversation_over_accounts_of_two_processes_that_die(house: House) -> None:
    """One text and one voice message each, in its place; one history; paid again is only what was in flight."""
    cluster, chance = house.cluster, chance_of("cluster, shared")
    cluster.begin(0)
    cluster.begin(1)
    cluster.until(lambda: len(set(cluster.owners().values())) == 2 and len(cluster.owners()) == 4)
    assert house.together()
    for number in range(KILLS):
        for _ in range(chance.randint(1, 3)):
            house.talk(chance.choice([*OWNERS, *OWNERS, "matrix2"]), chance.choice(["", "slow", "effect"]))
        time.sleep(chance.choice([chance.uniform(0, 0.4), chance.uniform(0.3, 2.5)]))
        assert house.together()
        victim = chance.choice(cluster.living())
        if number % 6 == 5:
            cluster.freeze(victim)
            house.death()
            house.talk(OWNERS[0])
            time.sleep(LEASE_S * 1.3)
            cluster.thaw()
        else:
            cluster.kill(victim)
            house.death()
            if chance.random() < 0.4:
                time.sleep(LEASE_S * 1.1)  # the other one takes over
        assert house.together()
        cluster.restart(0, 1)
    house.quiet()
    again = len(house.asked) - len({number for _, number in house.asked})
    print(f"{cluster.kills} kills, {cluster.freezes} freezes, {house.said} messages, {again} spoken again")
    assert house.problems() == [], cluster.log()[-6000:]
    assert house.together()
    effects = cluster.folder / "effects"
    done = effects.read_text().split() if effects.exists() else []
    assert len(done) == len(set(done))
    cluster.end()


def test_the_oracle_sees_an_answer_in_two_commits(house: House) -> None:
    """The control: who sends before it notes says it twice, and has no line of the first one."""
    cluster = house.cluster
    cluster.begin(0, control="sends_first", die="control.sent")
    house.talk("matrix")
    cluster.until(lambda: cluster.living() == [])
    house.death()
    cluster.begin(0)
    cluster.begin(1)
    house.quiet()
    assert house.problems() == ["#1: 3 texts"]
    cluster.end()
