"""
After every restart of the homeserver the bot was silent for up to 35 s: the first request after an outage was a long
poll of 30 s, and the link counted as down until it returned, so what was ready to be sent waited for it.
"""

from __future__ import annotations

import random

import anyio
import pytest

from agent_core.backoff import LINK_RETRY, Backoff
from channels.base import LinkState
from channels.matrix.client.homeserver import HttpAnswer, LinkBroken
from channels.matrix.receive.sync_loop import SYNC_RETRY
from tests.doubles.accounts import scripted_channel
from tests.doubles.homeserver import ScriptedHomeserver
from tests.doubles.inbox import MemoryInbox, running

pytestmark = pytest.mark.virtual_time
BOT = "@bot:hs.test"
_LONG_S = 30.0


class HonestHomeserver(ScriptedHomeserver):
    """It holds a request open for as long as it is asked to, like a real one on which nothing happens."""

    away = False

    async def sync(self, request):
        self.sync_requests.append(request)
        await anyio.sleep(0.01)
        if not self.away:
            await anyio.sleep(request.wait_s)
        if self.away:
            raise LinkBroken("cannot connect", maybe_taken=False)
        return HttpAnswer(200, {"next_batch": f"s{len(self.sync_requests)}"})


@pytest.mark.parametrize("outage_s", [1, 4, 10, 25, 50])
async def test_the_link_is_up_within_two_seconds_of_the_homeserver(tmp_path, outage_s):
    """However long it was away, within the first minute: nothing that waits for the link waits longer."""
    server = HonestHomeserver()
    channel = scripted_channel(server, tmp_path, settings={"allow_from": ["@alice:hs.test"]})
    inbox = MemoryInbox()
    async with running(channel, inbox):
        await inbox.until_up()
        assert server.sync_requests[-1].wait_s in (0.0, _LONG_S)
        server.away = True
        await inbox.until(lambda inbox: inbox.state is LinkState.DOWN, within_s=60)
        await anyio.sleep(outage_s)
        tried = len(server.sync_requests)
        server.away = False
        await inbox.until_up(within_s=2.0)

        assert server.sync_requests[tried].wait_s == 0.0
        await anyio.sleep(3)
        assert server.sync_requests[-1].wait_s == _LONG_S  # and then it waits for news again


def test_the_receiving_loop_is_never_five_seconds_away_in_the_first_minute() -> None:
    """After it the pauses grow, so that a server that stays away is left alone."""
    for _ in range(50):
        backoff = Backoff(SYNC_RETRY)
        waited = 0.0
        while waited < 60.0:
            pause = backoff.note_failure(random=random.random())
            assert pause <= 1.75
            waited += pause
        late = [backoff.note_failure(random=random.random()) for _ in range(8)]
        assert max(late) > 20.0
        assert late[0] < 5.0


def test_what_a_server_asks_for_is_granted_at_once() -> None:
    """A pause that is asked for is no back-off of ours."""
    assert Backoff(SYNC_RETRY).note_failure(random=random.random(), at_least_s=90.0) == 90.0


def test_a_channel_that_cannot_begin_is_tried_often_in_the_first_minute() -> None:
    """The supervisor's own back-off, with the worst of luck."""
    backoff = Backoff(LINK_RETRY)
    waited = 0.0
    tries = 0
    while waited < 60.0:
        delay = backoff.note_failure(up_s=0.0, random=0.999999)
        assert delay < 5.0
        waited += delay
        tries += 1
    assert tries < 40
    late = [backoff.note_failure(up_s=0.0, random=0.999999) for _ in range(8)]
    assert late[0] < 10.0
    assert max(late) > 50.0

    backoff.note_failure(up_s=3600.0, random=0.999999)  # a new outage has a first minute of its own
    assert backoff.note_failure(up_s=0.0, random=0.999999) < 5.0
