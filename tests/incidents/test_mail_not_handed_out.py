"""
A mail that the server lists and does not hand out was given up after three tries within seconds, for ever, and nobody
was told; each try dropped the connection, so the mails behind it waited as well.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from channels.email.imap.imap_connect import Timing
from channels.email.receive import mail_fetching
from channels.email.receive import mail_receiver as receiving
from channels.email.receive.mail_fetching import WithheldMails
from tests.clock import EPOCH, LoopClock
from tests.doubles.accounts import email_channel
from tests.doubles.imap_server import fake_imap
from tests.doubles.inbox import MemoryInbox, running
from tests.doubles.mailbox import Store, config

pytestmark = pytest.mark.virtual_time
WAYS = ("no", "nothing", "nil", "empty", "no size", "nothing at all")
DAY_S = 86_400.0


class Harness:
    """A mailbox, and the life of a channel on it after the other."""

    def __init__(self, tmp_path: Path, *uids: int) -> None:
        self.store, self.inbox, self.tmp_path = Store(), MemoryInbox(), tmp_path
        self.alerts: list[tuple[str, str, str]] = []
        self.clock = LoopClock()
        self.later = uids
        self.errors: list[str] = []

    async def start(self) -> None:
        """The first start, before which nothing counts."""
        async with self.life(0):
            self.store.uids += self.later

    def life(self, for_s: float):
        """One life of the channel, for so many seconds."""
        return _Life(self, for_s)

    async def live(self, for_s: float) -> None:
        """Live, and come back as the supervisor makes a channel come back."""
        async with self.life(for_s):
            pass

    def texts(self) -> list[str]:
        return [message.text for message in self.inbox.accepted if message.addressed]

    def refused(self) -> list[str]:
        return [message.context.refused for message in self.inbox.accepted if not message.addressed]


class _Life:
    def __init__(self, house: Harness, for_s: float) -> None:
        self.house, self.for_s = house, for_s

    async def __aenter__(self) -> None:
        house = self.house
        async with fake_imap(house.store) as port:
            channel = email_channel(
                "email", config(port), state_dir=house.tmp_path, clock=house.clock,
                timing=Timing(idle_refresh_s=4 * 3600.0),
                alert=lambda about, text, once="": house.alerts.append((about, text, once)),
            )  # fmt: skip
            end = house.clock.monotonic() + self.for_s
            while True:
                async with running(channel, house.inbox) as run:
                    if self.for_s == 0:
                        await house.inbox.until_up(within_s=3600)
                        return
                    with anyio.move_on_after(max(end - house.clock.monotonic(), 0)):
                        await run.ended.wait()
                house.errors.append(str(run.error))
                if house.clock.monotonic() >= end:
                    return
                await anyio.sleep(2)

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("way", WAYS)
async def test_the_others_go_on_and_it_comes_when_the_server_can(tmp_path: Path, way: str) -> None:
    """The mails around it are taken on the same connection; it is when it is there, over a restart too."""
    house = Harness(tmp_path, 1, 2, 3)
    house.store.withheld[2] = way
    await house.start()
    await house.live(60)
    assert house.texts() == ["number 1", "number 3"]
    assert house.store.commands.count('LOGIN "bot" "pw-secret"') == 2
    await house.live(600)
    assert house.refused() == []
    house.store.withheld.clear()
    await house.live(3 * 3600)
    assert house.texts() == ["number 1", "number 3", "number 2"]
    assert house.alerts == []
    assert json.loads(house.inbox.positions["withheld"]) == {}


async def test_one_that_breaks_the_connection(tmp_path: Path) -> None:
    """Dovecot closes the connection in the middle of a mail that it cannot read."""
    house = Harness(tmp_path, 1, 2, 3)
    house.store.withheld[2] = "hangs up"
    await house.start()
    await house.live(60)
    assert sorted(house.texts()) == ["number 1", "number 3"]
    house.store.withheld.clear()
    await house.live(3 * 3600)
    assert sorted(house.texts()) == ["number 1", "number 2", "number 3"]


@pytest.mark.parametrize("way", [*WAYS, "hangs up"])
async def test_after_a_day_the_owner_hears_of_it(tmp_path: Path, way: str) -> None:
    """With its sender and what to do; and the pauses grew meanwhile."""
    house = Harness(tmp_path, 1, 2, 3)
    house.store.withheld[2] = way
    await house.start()
    await house.live(DAY_S / 2)
    before = len(house.store.commands)
    assert house.alerts == []
    await house.live(DAY_S)
    assert house.refused() == ["unreadable_unfetchable"]
    assert {(about, once) for about, _, once in house.alerts} == {("mail email 7-2", "7-2")}
    text = house.alerts[0][1]
    assert "web mail" in text
    if way in ("no", "nothing", "nil", "empty"):
        assert "from alice@mail.test" in text
    asked = [
        each for each in house.store.commands[before:] if each.startswith("UID FETCH 2 (UID BODY.PEEK[])")
    ]
    assert len(asked) < 40
    await house.live(DAY_S)
    assert json.loads(house.inbox.positions["withheld"]) == {}
    assert len({once for _, _, once in house.alerts}) == 1


async def test_a_kill_at_the_moment_at_which_it_is_given_up(tmp_path: Path) -> None:
    """What the owner was to be told was in memory: the next life tells it, under the same key."""
    house = Harness(tmp_path, 1)
    house.store.withheld[1] = "no"
    await house.start()
    await house.live(DAY_S * 0.9)
    told: list[int] = []
    house.inbox.on_accepted = lambda: told.append(1) if house.alerts else None
    await house.live(DAY_S * 0.2)
    assert told
    assert house.alerts
    house.alerts.clear()  # the process died before its alerts were stored
    await house.live(2 * 3600)
    assert {once for *_, once in house.alerts} == {"7-1"}


async def test_one_that_was_deleted_is_nothing_to_tell(tmp_path: Path) -> None:
    house = Harness(tmp_path, 1, 2)
    house.store.withheld[1] = "no"
    await house.start()
    await house.live(60)
    house.store.uids.remove(1)
    await house.live(2 * DAY_S)
    assert (house.alerts, house.refused()) == ([], [])


async def test_a_server_that_hands_out_nothing_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link waits then; nothing is passed over, and all comes in the end."""
    monkeypatch.setattr(mail_fetching, "MAX_WITHHELD", 20)
    many = 25
    house = Harness(tmp_path, *range(1, many + 1))
    house.store.withheld = dict.fromkeys(range(1, many + 1), "no")
    await house.start()
    await house.live(60)
    assert "returns none of them" in " ".join(house.errors)
    house.store.withheld.clear()
    await house.live(3 * 3600)
    assert sorted(house.texts()) == sorted(f"number {uid}" for uid in range(1, many + 1))


async def test_a_mail_whose_reading_takes_too_long_is_read_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may have been busy; one that is slow each time is taken as it was before."""
    slow = {b"number 2": 1, b"number 3": 99}
    read = receiving._read_guarded

    def reading(uid, received_at, raw, whole):
        for words in slow:
            if words in raw and slow[words]:
                slow[words] -= 1
                return receiving.given_up(uid, received_at, raw, "too_slow")
        return read(uid, received_at, raw, whole)

    monkeypatch.setattr(receiving, "_read_guarded", reading)
    house = Harness(tmp_path, 1, 2, 3)
    await house.start()
    await house.live(60)
    told = [message.text for message in house.inbox.accepted if not message.context.unreadable]
    assert told == ["number 1", "number 2"]
    assert ["takes too long" in message.context.unreadable for message in house.inbox.accepted].count(
        True
    ) == 1


def test_a_clock_that_was_put_back_makes_it_due() -> None:
    """Otherwise it would wait until the clock was there again."""
    withheld = WithheldMails()
    withheld.add(1, EPOCH + timedelta(days=400))
    assert withheld.begin(EPOCH) == [1]
    assert WithheldMails(withheld.as_value()).next_s(EPOCH) is not None
    assert WithheldMails("rubbish").begin(EPOCH) == []


async def test_what_was_set_aside_is_known_from_the_position_alone(tmp_path: Path) -> None:
    """Negative control of the tests above: without what was committed, it would be lost with the restart."""
    house = Harness(tmp_path, 1, 2)
    house.store.withheld[1] = "no"
    await house.start()
    await house.live(60)
    house.inbox.positions["withheld"] = "{}"
    house.store.withheld.clear()
    await house.live(DAY_S)
    assert house.texts() == ["number 2"]
