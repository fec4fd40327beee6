"""The receiving loop against a scripted homeserver, on virtual time."""

import json

import anyio
import pytest

from channels.base import ChannelAuthFailed, ChannelUnavailable, LinkState
from channels.matrix.client.homeserver import HttpAnswer, LinkBroken, MatrixCredentials
from channels.matrix.config import MatrixConfig
from channels.matrix.receive.deferred_reading import GAP_TRIES
from tests.clock import LoopClock
from tests.doubles.accounts import matrix_channel, scripted_channel
from tests.doubles.homeserver import ScriptedHomeserver, failure, member, text
from tests.doubles.inbox import MemoryInbox, running

pytestmark = pytest.mark.virtual_time
BOT, ALICE, ROOM = "@bot:hs.test", "@alice:hs.test", "!room:hs.test"


@pytest.fixture
def server():
    return ScriptedHomeserver()


@pytest.fixture
def channel(server, tmp_path):
    return scripted_channel(server, tmp_path, settings={"allow_from": [ALICE], "group_policy": "open"})


@pytest.fixture
def inbox():
    inbox = MemoryInbox()
    inbox.positions["next_batch"] = "s0"
    return inbox


def timeline(*events, limited=False, prev_batch="p", room=ROOM, **section):
    return {
        "join": {
            room: {
                "timeline": {"events": list(events), "limited": limited, "prev_batch": prev_batch},
                **section,
            }
        }
    }


async def test_the_first_start_ever_only_takes_the_position(server, channel):
    """Without a position the old timeline is ignored; from the next answer on everything counts."""
    inbox = MemoryInbox()
    server.sync_body(rooms=timeline(text("$old")))
    server.sync_body(rooms=timeline(text("$new")))
    async with running(channel, inbox):
        await inbox.until_accepted(1)

    assert [message.native_id for message in inbox.accepted] == ["$new"]
    assert [(call.since, call.full_state) for call in server.sync_requests[:2]] == [
        (None, False),
        ("s1", False),
    ]


async def test_a_restart_resumes_with_the_full_state(server, channel, inbox):
    """The first request after a start carries the committed position and asks for all rooms."""
    server.sync_body(rooms=timeline(text("$1")))
    async with running(channel, inbox):
        await inbox.until_accepted(1)

    assert (server.sync_requests[0].since, server.sync_requests[0].full_state) == ("s0", True)
    assert (server.sync_requests[1].since, server.sync_requests[1].full_state) == ("s1", False)


async def test_nothing_is_asked_for_before_it_is_accepted(server, channel, inbox):
    """While the store takes nothing, the next request is not made and the position does not move."""
    server.sync_body(rooms=timeline(text("$1")))
    server.sync_body(rooms=timeline(text("$2")))
    inbox.hold()
    async with running(channel, inbox):
        await inbox.until_offered(1)
        await anyio.sleep(3600)
        assert len(server.sync_requests) == 1
        assert inbox.positions["next_batch"] == "s0"
        inbox.release()
        await inbox.until_accepted(2)

    assert inbox.positions["next_batch"] == "s2"


async def test_a_gap_is_filled_forwards_and_in_order(server, channel, inbox):
    """Pages come before the timeline, with the committed position as their beginning."""
    server.on(
        "GET", "/messages$",
        HttpAnswer(200, {"chunk": [text("$1"), text("$2")], "end": "t1"}),
        HttpAnswer(200, {"chunk": [], "end": "t2"}),
        HttpAnswer(200, {"chunk": [text("$3"), text("$4")]}),
    )  # fmt: skip
    server.sync_body(rooms=timeline(text("$4"), text("$5"), limited=True))
    async with running(channel, inbox):
        await inbox.until_accepted(5)
        await inbox.until_up()

    assert [message.native_id for message in inbox.accepted] == ["$1", "$2", "$3", "$4", "$5"]
    assert [call.query["from"] for call in server.asked("GET", "/messages$")] == ["s0", "t1", "t2"]
    assert {call.query["dir"] for call in server.asked("GET", "/messages$")} == {"f"}


async def test_a_gap_that_fails_for_a_while_loses_nothing(server, channel, inbox):
    """It is asked for again, and what came after it waits for it."""
    server.on(
        "GET",
        "/messages$",
        failure(502),
        LinkBroken("cut", maybe_taken=True),
        HttpAnswer(200, {"chunk": [text("$1")]}),
    )
    server.sync_body()
    server.sync_body(rooms=timeline(text("$2"), limited=True))
    server.sync_body(rooms=timeline(text("$3")))
    async with running(channel, inbox):
        await inbox.until_accepted(3, within_s=30)

    assert [message.native_id for message in inbox.accepted] == ["$1", "$2", "$3"]
    assert [call.query["from"] for call in server.asked("GET", "/messages$")] == ["s1", "s1", "s1"]


async def test_a_gap_that_never_works_is_reported_and_left(server, channel, inbox):
    """One broken room must not make the account deaf for ever."""
    server.on("GET", "/messages$", failure(500, "M_UNKNOWN"))
    server.sync_body()
    server.sync_body(rooms=timeline(text("$2"), limited=True))
    async with running(channel, inbox):
        for _ in range(GAP_TRIES + 2):
            await anyio.sleep(40)
            server.sync_body()
        await inbox.until_accepted(1, within_s=1000)
        await inbox.until(lambda inbox: inbox.facts[-1].get("gaps_left") == 1)

    assert len(server.asked("GET", "/messages$")) >= GAP_TRIES


async def test_first_words_are_read_back_to_the_invitation(server, channel, inbox):
    """In a room that was just joined, what follows the invitation counts, and nothing before it."""
    page = [text("$2"), member(BOT, "invite", before="leave"), text("$ancient")]
    server.on("GET", "/messages$", HttpAnswer(200, {"chunk": page, "end": "t1"}))
    server.sync_body()
    server.sync_body(
        rooms=timeline(text("$3"), member(BOT, "join", before="invite"), text("$4"), limited=True)
    )
    async with running(channel, inbox):
        await inbox.until_accepted(3)

    assert [message.native_id for message in inbox.accepted] == ["$2", "$3", "$4"]
    assert server.asked("GET", "/messages$")[0].query["dir"] == "b"


async def test_a_new_name_of_the_bot_is_no_join(server, channel, inbox):
    """A membership event that only changes the bot's name does not bring back old messages."""
    server.sync_body()
    server.sync_body(
        rooms=timeline(text("$1"), member(BOT, "join", before="join", displayname="New"), text("$2"))
    )
    async with running(channel, inbox):
        await inbox.until_accepted(2)

    assert server.asked("GET", "/messages$") == []


async def test_a_direct_room_is_counted_after_a_restart(server, channel, inbox):
    """A server that sends no summary is asked who is there before a message is called direct."""
    server.on("GET", "/members$", HttpAnswer(200, {"chunk": [member(BOT), member(ALICE)]}))
    direct = {"events": [{"type": "m.direct", "content": {ALICE: [ROOM]}}]}
    server.sync_body(rooms=timeline(text("$1")), account_data=direct)
    async with running(channel, inbox):
        [message] = await inbox.until_accepted(1)

    assert message.audience == "direct"


async def test_a_poisoned_event_takes_nobody_along(server, channel, inbox):
    """Malformed events are counted and skipped; their neighbours arrive."""
    poison = [
        None,
        5,
        [],
        {},
        {"type": "m.room.message"},
        {"type": 5},
        {**text("$x"), "content": {"body": {}}},
    ]
    server.sync_body(rooms=timeline(text("$1"), *poison, text("$2"), state={"events": poison}))
    async with running(channel, inbox):
        await inbox.until_accepted(2)
        await inbox.until_up()

    assert inbox.facts[-1]["events_unreadable"] >= 1


async def test_a_storm_is_answered_with_growing_pauses(server, channel, inbox):
    """Twelve seconds of errors are fewer than ten requests; then it goes on where it was."""
    server.sync_body()
    async with running(channel, inbox) as run:
        await inbox.until_up()
        server.syncs += [failure(502) for _ in range(1000)]
        before = len(server.sync_requests)
        await anyio.sleep(12)
        assert len(server.sync_requests) - before < 10
        assert inbox.state is LinkState.DOWN
        server.syncs.clear()
        server.sync_body(rooms=timeline(text("$1")))
        await inbox.until_accepted(1, within_s=60)
        await inbox.until_up()
        assert not run.ended.is_set()


async def test_a_link_that_stays_away_is_given_back(server, channel, inbox):
    """After minutes of failures the run ends, so that the supervisor can begin anew."""
    server.sync_body()
    server.syncs += [LinkBroken("no route", maybe_taken=False) for _ in range(1000)]
    async with running(channel, inbox) as run:
        error = await run.until_ended(within_s=1000)

    assert isinstance(error, ChannelUnavailable)
    assert len(server.sync_requests) < 80


async def test_before_the_first_success_failures_end_the_run(server, channel, inbox):
    """The supervisor knows how to wait for a server that is not there."""
    server.syncs.append(LinkBroken("refused", maybe_taken=False))
    async with running(channel, inbox) as run:
        error = await run.until_ended()

    assert isinstance(error, ChannelUnavailable)
    assert LinkState.UP not in inbox.states


async def test_a_pause_that_the_server_asks_for_is_kept(server, channel, inbox):
    """A 429 on /sync is followed by at least the wanted pause."""
    server.sync_body()
    server.syncs.append(HttpAnswer(429, {"errcode": "M_LIMIT_EXCEEDED"}, retry_after_s=120.0))
    server.syncs.append(HttpAnswer(200, {"next_batch": "s2"}))
    clock = LoopClock()
    async with running(channel, inbox):
        begun = clock.monotonic()
        await inbox.until(lambda inbox: inbox.positions["next_batch"] == "s2", within_s=500)

    assert clock.monotonic() - begun >= 120 - 1e-6  # a difference of floating-point numbers


async def test_a_refused_token_is_renewed_once(server, channel, inbox):
    """A revoked token leads to one login, and the loop goes on with the new token from where it was."""
    login = HttpAnswer(200, {"user_id": BOT, "device_id": "NEW", "access_token": "token-2"})
    server.on("POST", "/login$", login)
    server.sync_body()
    server.syncs.append(failure(401, "M_UNKNOWN_TOKEN"))
    server.syncs.append(HttpAnswer(200, {"next_batch": "s9", "rooms": timeline(text("$1"))}))
    async with running(channel, inbox):
        await inbox.until_accepted(1)

    assert len(server.asked("POST", "/login$")) == 1
    assert "device_id" not in server.asked("POST", "/login$")[0].body
    assert server.credentials.access_token == "token-2"
    assert [call.since for call in server.sync_requests[1:3]] == ["s1", "s1"]


async def test_tokens_that_never_work_end_in_words(server, channel, inbox):
    """A server that logs us in and refuses the token each time is not asked for ever."""
    tokens = iter(range(1000))
    server.on(
        "POST", "/login$",
        lambda call: HttpAnswer(200, {"user_id": BOT, "device_id": "D", "access_token": f"t{next(tokens)}"}),
    )  # fmt: skip
    server.sync_body()
    server.syncs += [failure(401, "M_UNKNOWN_TOKEN") for _ in range(100)]
    async with running(channel, inbox) as run:
        error = await run.until_ended()

    assert isinstance(error, ChannelAuthFailed)
    assert len(server.asked("POST", "/login$")) <= 5


async def test_a_deactivated_account_is_for_the_operator(server, channel, inbox):
    """The account was closed: no retries, a clear sentence."""
    server.sync_body()
    server.syncs.append(failure(403, "M_USER_DEACTIVATED"))
    async with running(channel, inbox) as run:
        error = await run.until_ended()

    assert isinstance(error, ChannelAuthFailed)
    assert "deactivated" in str(error)


async def test_a_stored_login_of_another_account_is_not_used(server, tmp_path, inbox):
    """A copied state folder does not make one account speak as another."""
    server.on("POST", "/login$", HttpAnswer(200, {"user_id": BOT, "device_id": "D", "access_token": "t"}))
    server.sync_body()

    async def connect(_):
        server.credentials = None
        return server

    for content in (
        '{"homeserver": "http://else", "user_id": "@x:y", "device_id": "D", "access_token": "t"}',
        "{",
        "[]",
    ):
        (tmp_path / "session.json").write_text(content)
        config = MatrixConfig(homeserver="http://hs", user_id=BOT, password="pw")
        channel = matrix_channel("matrix", config, state_dir=tmp_path, clock=LoopClock(), connect=connect)
        server.sync_body()
        async with running(channel, inbox):
            await inbox.until_up()
        inbox.states.clear()
        kept = json.loads((tmp_path / "session.json").read_text())
        assert (kept["user_id"], kept["access_token"]) == (BOT, "t")

    assert len(server.asked("POST", "/login$")) == 3


async def test_credentials_do_not_show_the_token():
    """A token does not get into a log by way of repr."""
    assert "secret" not in repr(MatrixCredentials("@a:b", "D", "secret"))
