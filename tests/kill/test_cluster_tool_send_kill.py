"""
The tool `send_message` between daemons: the owner asks on Matrix for a mail, and by mail, with a yes, for a message in the
encrypted room, while whoever has the account of the question, that of the message, or both are killed.

The oracle is what the owner has got: each message and each answer once, whatever the answer calls the message.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter

import pytest

from tests.kill.cluster_world import ACCOUNTS, MACHINES, Cluster
from tests.kill.scripted import numbers_in
from tests.kill.tally import chance as chance_of
from tests.kill.writing_daemon import FORGETS, LINGERS_S

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]
TIMES = int(os.environ.get("SQUIDBOT_CLUSTER_MESSAGES", "6"))
QUESTION = re.compile(r"\b(a[0-9a-f]{6})\b")
TO = {"matrix": "email", "email": "matrix"}


class Letters:
    """
    What the owner has asked to be sent, and what came of it.

    Args:
        **environment: What the daemons are told besides.
    """

    def __init__(self, cluster: Cluster, **environment: str) -> None:
        self.cluster = cluster
        self.asked: dict[int, str] = {}
        self._approved: set[str] = set()
        for daemon in cluster.daemons:
            daemon.module, daemon.environment = "tests.kill.writing_daemon", environment

    def apart(self) -> bool:
        """Whether all machines run, and two of them have the owner's accounts."""
        owners = [self.cluster.owner(account) for account in ACCOUNTS]
        return (
            self.cluster.restarted() and None not in owners and owners[0] != owners[ACCOUNTS.index("email")]
        )

    def ask(self, by: str) -> int:
        """The owner asks by an account for a message on the other one."""
        wish = json.dumps({"to": TO[by], "text": f"note {len(self.asked)}"})
        number = len(self.cluster.said) + 1
        self.asked[number] = f"note {len(self.asked)}"
        assert self.cluster.say(by, f" do send_message {wish}") == number
        return number

    def approved(self) -> bool:
        """Say yes to what the owner is asked by mail."""
        told = [
            text for text in self.cluster.people["email"].answers() if not text.startswith(("re:", "note"))
        ]
        for name in sorted({found[1] for text in told if (found := QUESTION.search(text))} - self._approved):
            self.cluster.people["email"].say(f"!approve {name}")
            self._approved.add(name)
        return True

    def posted(self, number: int) -> bool:
        """Whether a message is in the outbox."""
        query = f"SELECT count(*) FROM squidbot.all_outbox WHERE payload LIKE '%\"{self.asked[number]}\"%'"
        return self.cluster.rows(query) not in ([], [(0,)])

    def came(self) -> Counter[str]:
        """How often each message and the answer to each question has come, wherever."""
        texts = [text for account in TO for text in self.cluster.people[account].answers()]
        found = Counter(text.strip() for text in texts if text.startswith("note "))
        return found + Counter(f"re: #{numbers_in(text)[0]}" for text in texts if text.startswith("re: #"))

    def wanted(self) -> dict[str, int]:
        """All of it once."""
        return dict.fromkeys([*self.asked.values(), *(f"re: #{number}" for number in self.asked)], 1)

    def is_all_there(self) -> bool:
        """Whether nothing is missing."""
        return self.wanted().keys() <= self.came().keys()


def test_what_the_tool_sends_by_another_machine_arrives_once(cluster: Cluster) -> None:
    """Killed between the wish and the answer, wherever that hits; also where the message has just been posted."""
    chance, letters = chance_of("tool sends"), Letters(cluster)
    cluster.up()
    for turn in range(TIMES):
        cluster.until(lambda: letters.apart() and letters.approved() and letters.is_all_there())
        by = chance.choice(list(TO))
        victims = [{by}, {TO[by]}, {by, TO[by]}][turn % 3]
        machines = {cluster.owner(account) for account in victims}
        number = letters.ask(by)
        if turn % 2:
            cluster.until(lambda number=number: letters.approved() and letters.posted(number))
            time.sleep(chance.uniform(0, 0.5))
        else:
            time.sleep(chance.uniform(0, 2))
        for machine in machines.intersection(cluster.living()):
            cluster.kill(machine)
    cluster.until(lambda: cluster.restarted() and letters.approved() and letters.is_all_there())
    cluster.quiet()
    time.sleep(2)  # a second one would come now
    print(f"{cluster.kills} kills, {len(letters.asked)} messages")
    assert cluster.kills >= TIMES
    assert {what: times for what, times in letters.came().items() if times != 1} == {}, cluster.logs()
    assert cluster.rows("SELECT count(*) FROM squidbot.all_outbox WHERE state IN ('unknown', 'dead')") == [
        (0,)
    ]


def test_a_message_without_its_key_arrives_twice(cluster: Cluster) -> None:
    """The control: the turn that goes on elsewhere posts it once more."""
    letters = Letters(cluster, **{FORGETS: "1", LINGERS_S: "5"})
    cluster.up()
    cluster.until(letters.apart)
    number = letters.ask("matrix")
    cluster.until(lambda: letters.posted(number))
    owner = cluster.owner("matrix")
    assert owner in MACHINES
    cluster.kill(owner)
    cluster.until(lambda: cluster.restarted() and letters.came()[f"re: #{number}"] == 1)
    cluster.until(lambda: letters.came()[letters.asked[number]] == 2)
