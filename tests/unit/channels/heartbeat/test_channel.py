"""The heartbeat as a channel that lives through days, restarts and clocks that jump, in virtual time."""

from __future__ import annotations

import os
import threading
from datetime import datetime, timedelta

import anyio
import pytest

from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from channels.base import DeliveryFailed, LinkState
from channels.heartbeat.channel import HeartbeatChannel
from channels.heartbeat.tick_schedule import Schedule, tick_name
from tests.clock import EPOCH, LoopClock
from tests.doubles.inbox import MemoryInbox, running

pytestmark = pytest.mark.virtual_time


class Beat:
    """A heartbeat in virtual time, over several lives."""

    def __init__(self, tmp_path, **schedule) -> None:
        self.clock = LoopClock()
        self.clock.now()
        self.offset = timedelta(0)
        self.inbox = MemoryInbox()
        self.file = tmp_path / "HEARTBEAT.md"
        self.file.write_text("- [ ] water the plants\n")
        self.schedule = Schedule(**{"interval_minutes": 30.0, **schedule})

    def now(self) -> datetime:
        return self.clock.now() + self.offset

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def channel(self, **options) -> HeartbeatChannel:
        return HeartbeatChannel(self.schedule, checklist=self.file, clock=self, **options)

    async def live(self, hours: float, **options) -> None:
        async with running(self.channel(**options), self.inbox) as run:
            await anyio.sleep(hours * 3600)
            assert run.error is None

    @property
    def ticks(self) -> list[str]:
        return [message.native_id for message in self.inbox.accepted]

    def name(self, hours: float) -> str:
        return tick_name(EPOCH + timedelta(hours=hours))


class TestChannel:
    async def test_three_days(self, tmp_path):
        """A tick every half hour, each once, named by its instant."""
        beat = Beat(tmp_path)
        await anyio.sleep(60)
        await beat.live(72.1)
        assert beat.ticks == [beat.name(half / 2) for half in range(1, 145)]

    async def test_what_a_tick_is(self, tmp_path):
        """A message of the kind "tick" in the heartbeat's own session, with the checklist in it."""
        beat = Beat(tmp_path)
        await beat.live(0.6)
        (tick,) = beat.inbox.accepted
        assert tick.kind == "tick"
        assert tick.session == SessionKey("heartbeat", "owner")
        assert (tick.sender.address, tick.sender.verified) == ("heartbeat", True)
        assert "water the plants" in tick.text
        assert "HEARTBEAT_OK" in tick.text
        assert beat.inbox.positions["last_tick"] == tick.native_id
        assert beat.inbox.state is LinkState.UP
        assert beat.inbox.facts[-1]["next_tick"] == beat.name(1.0)

    async def test_the_first_start_has_missed_nothing(self, tmp_path):
        """A new home does not begin with a tick of the past."""
        beat = Beat(tmp_path)
        await anyio.sleep(20 * 60)
        await beat.live(0.1)
        assert beat.ticks == []
        assert beat.inbox.positions == {"last_tick": beat.name(0)}

    async def test_missed_ticks_are_one(self, tmp_path):
        """After a day off there is one tick at the start, the newest."""
        beat = Beat(tmp_path)
        await beat.live(1.1)
        await anyio.sleep(86_400)
        await beat.live(0.1)
        assert beat.ticks == [beat.name(0.5), beat.name(1.0), beat.name(25.0)]

    async def test_a_restart_at_every_moment_repeats_nothing(self, tmp_path):
        """Ten restarts per interval, for a day: the same ticks as without any."""
        beat = Beat(tmp_path)
        await beat.live(0.01)
        for _ in range(480):
            await beat.live(0.05)
        assert beat.ticks == [beat.name(half / 2) for half in range(1, 49)]

    async def test_two_processes_mean_the_same_tick(self, tmp_path):
        """Two clocks that fire the same instant write one message."""
        beat = Beat(tmp_path)
        async with running(beat.channel(), beat.inbox), running(beat.channel(), beat.inbox):
            await anyio.sleep(3 * 3600 + 60)
        assert len(beat.inbox.offered) == 12
        assert beat.ticks == [beat.name(half / 2) for half in range(1, 7)]

    async def test_a_kill_before_the_commit_fires_again(self, tmp_path):
        """A tick that hung in `accept` at the kill comes after the restart, under its name, once."""
        beat = Beat(tmp_path)
        await beat.live(0.1)
        beat.inbox.hold()
        await beat.live(0.5)
        beat.inbox.release()
        await beat.live(0.1)
        assert len(beat.inbox.offered) == 2
        assert beat.ticks == [beat.name(0.5)]

    async def test_a_lost_position_repeats_nothing(self, tmp_path):
        """Even if the last tick is forgotten, its name is known."""
        beat = Beat(tmp_path)
        await beat.live(0.6)
        beat.inbox.positions["last_tick"] = beat.name(0)
        await beat.live(0.1)
        assert len(beat.inbox.offered) == 2
        assert beat.ticks == [beat.name(0.5)]

    async def test_nothing_to_do_is_no_message(self, tmp_path):
        """An empty checklist for two days: no message at all, only the position moves."""
        beat = Beat(tmp_path)
        beat.file.write_text("# Heartbeat\n\n- [x] water the plants\n- [ ]\n")
        await beat.live(47.9)
        assert beat.inbox.offered == []
        assert beat.inbox.positions == {"last_tick": beat.name(47.5)}
        beat.file.write_text("- something new\n")
        await beat.live(0.2)
        assert beat.ticks == [beat.name(48)]

    @pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "dangling"])
    async def test_without_a_readable_checklist_there_is_nothing_to_do(self, tmp_path, kind):
        """Whatever stands in the file's place, the heartbeat goes on."""
        beat = Beat(tmp_path)
        beat.file.unlink()
        if kind == "folder":
            beat.file.mkdir()
        elif kind == "pipe":
            os.mkfifo(beat.file)
        elif kind == "dangling":
            beat.file.symlink_to(tmp_path / "nowhere")
        await beat.live(1.1)
        assert beat.inbox.offered == []
        assert beat.inbox.positions == {"last_tick": beat.name(1.0)}

    @pytest.mark.parametrize("content", [os.urandom(1000) * 10_000, b"- call mum\0", b"\xff\xfe\xfd" * 99])
    async def test_what_is_no_text_asks_for_nothing(self, tmp_path, content):
        """Ten megabytes of anything that is no text are no reason to ask a model."""
        beat = Beat(tmp_path)
        beat.file.write_bytes(content)
        await beat.live(0.6)
        assert beat.inbox.offered == []
        assert beat.inbox.positions == {"last_tick": beat.name(0.5)}

    async def test_a_file_that_comes_and_goes_while_it_is_read(self, tmp_path):
        """Another program replaces, deletes and makes it all the time: each look asks, or says why not."""
        beat = Beat(tmp_path)
        channel, over = beat.channel(), threading.Event()
        big = "- [ ] water the plants\n" * 20_000

        def disturb() -> None:
            while not over.is_set():
                beat.file.write_text(big)
                beat.file.unlink()

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            found = [await channel.preview_tick(EPOCH) for _ in range(200)]
        finally:
            over.set()
            thread.join()
        assert {one.reason for one in found} <= {
            "",
            "nothing to do: there is no HEARTBEAT.md",
            "nothing to do: HEARTBEAT.md asks for nothing",
        }
        assert all("water the plants" in one.text for one in found if one.text)

    async def test_a_huge_checklist_fits_into_a_message(self, tmp_path):
        """A megabyte of items, with a byte that is no UTF-8, becomes a tick of a few pages that says so."""
        beat = Beat(tmp_path)
        beat.file.write_bytes(b"- [ ] call m\xfcm\n" + b"- [ ] call mum\n" * 70_000)
        await beat.live(0.6)
        (tick,) = beat.inbox.accepted
        assert len(tick.text) < 17_000
        assert "The rest of the file was left out" in tick.text

    async def test_active_hours(self, tmp_path):
        """From 22:00 to 02:00 UTC, three days long: eight ticks a night, and no other."""
        beat = Beat(tmp_path, start_minute=22 * 60, end_minute=2 * 60)
        await beat.live(71.9)
        hours = [0.5, 1.0, 1.5] + [day * 24 + h / 2 for day in (0, 1, 2) for h in range(44, 52)]
        assert beat.ticks == [beat.name(hour) for hour in hours if hour < 72]

    async def test_the_clock_jumps_forward(self, tmp_path):
        """After a suspended night the machine fires the newest tick within a minute."""
        beat = Beat(tmp_path)
        async with running(beat.channel(), beat.inbox):
            await anyio.sleep(10 * 60)
            beat.offset = timedelta(hours=8)
            await anyio.sleep(61)
        assert beat.ticks == [beat.name(8)]

    async def test_the_clock_jumps_back(self, tmp_path):
        """Time that passes a second time fires nothing a second time, and nothing for long."""
        beat = Beat(tmp_path)
        await beat.live(4.1)
        beat.offset = timedelta(hours=-3)
        await beat.live(4.1)
        assert beat.ticks == [beat.name(half / 2) for half in range(1, 11)]

    async def test_a_very_short_interval(self, tmp_path):
        """0.02 minutes are 1.2 seconds."""
        beat = Beat(tmp_path, interval_minutes=0.02)
        await beat.live(60 / 3600 + 0.0001)
        assert len(beat.ticks) == 50
        assert beat.ticks[0] == "2026-01-01T00:00:01.200Z"


def alert(text: str) -> OutboundMessage:
    return OutboundMessage(
        id="k1",
        channel="heartbeat",
        account="heartbeat",
        session=SessionKey("heartbeat", "owner"),
        text=text,
        created_at=EPOCH,
        kind=OutboundKind.ALERT,
    )


class TestDelivering:
    async def test_nobody_reads_messages_to_the_clock(self, tmp_path):
        """An alert is refused for good, with a plain reason, and nothing is uncertain."""
        marks = []

        async def mark():
            marks.append(1)

        with pytest.raises(DeliveryFailed, match="cannot receive messages") as caught:
            await Beat(tmp_path).channel().deliver(alert("the plants!"), uncertain=mark)
        assert not caught.value.temporary
        assert marks == []

    async def test_nothing_to_say_goes_to_nobody(self, tmp_path):
        """It counts as sent, so that it does not come again."""
        channel = Beat(tmp_path).channel()
        assert (await channel.deliver(alert("HEARTBEAT_OK"), uncertain=anyio.lowlevel.checkpoint)).provider_id

    async def test_hints_and_closing_are_quiet(self, tmp_path):
        """Nothing happens and nothing raises."""
        channel = Beat(tmp_path).channel()
        await channel.typing(SessionKey("heartbeat", "owner"), on=True)
        await channel.preview(SessionKey("heartbeat", "owner"), "half")
        assert await channel.probe(alert("x")) is None
        await channel.aclose()
        await channel.aclose()
