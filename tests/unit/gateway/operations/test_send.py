"""What is sent on somebody's word: to the right place, through the outbox, or refused in words."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from agent_core.memory.scopes import hidden_from, private_in, scope_for
from agent_core.messages import Audience, OutboundKind, SessionKey
from channels.base import DeliveryFailed
from gateway.errors import NeedsDaemon
from gateway.operations.operation_arguments import RequestInvalid
from gateway.operations.operation_context import OperationContext
from gateway.routing.access import Access, Alias, Role
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.wakeups import Wakeups
from tests.clock import ManualClock
from tests.command_line import squidbot

ACCOUNTS = {"matrix": "@bot:hs.test", "email": "bot@mail.test"}


class Reachable:
    """A channel that knows where a conversation with somebody begins."""

    def __init__(self):
        self.asked = []

    async def direct_session(self, person, *, topic=""):
        self.asked.append((person, topic))
        if person.startswith("nobody"):
            raise DeliveryFailed("no such mailbox")
        return SessionKey("email", f"<thread-with-{person}>")

    async def alone_with(self, session, person):
        return True


@pytest.fixture
def wakeups():
    return Wakeups()


@pytest.fixture
async def store(tmp_path, wakeups):
    store = await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock(), wakeups=wakeups)
    yield store
    await store.aclose()


@pytest.mark.parametrize("place", ["@alice:hs.test", "#team:hs.test", "!room:hs.test", "!31hneA"])
async def test_a_place_on_matrix_is_a_row_of_the_outbox(store, wakeups, place):
    """Also without a daemon; long texts are several rows, and the senders are told."""
    woken = []
    wakeups.outbox.connect(woken.append)
    desk = OperationContext(store, None, accounts=ACCOUNTS)
    answer = await desk.call("send", {"to": f"matrix:{place}", "text": "word " * 5000})
    rows = list(reversed(await store.outbox.rows()))

    assert answer["outbox"] == [row.id for row in rows]
    assert len(rows) == 2
    assert {(row.message.session, row.message.account, row.message.kind) for row in rows} == {
        (SessionKey("matrix", place), "@bot:hs.test", OutboundKind.MESSAGE)
    }
    assert all(row.message.remembered for row in rows)
    assert await store.journal.lines() == []  # it becomes history when it has arrived
    assert woken == ["matrix"]
    assert answer["running"] is False


async def test_the_owner_is_a_place_of_their_own(store):
    """Whoever writes to the owner need not know an address: on Matrix if that can be, else by mail."""
    aliases = [Alias("email", "owner@mail.test"), Alias("matrix", "@owner:hs.test")]
    desk = OperationContext(store, None, accounts=ACCOUNTS, access=Access(aliases, {}))
    await desk.call("send", {"to": "owner", "text": "the oven is on"})
    (row,) = await store.outbox.rows()
    assert row.message.session == SessionKey("matrix", "@owner:hs.test")

    only_mail = Access(aliases[:1], {})
    desk = OperationContext(store, None, accounts=ACCOUNTS, access=only_mail, channels={"email": Reachable()})
    await desk.call("send", {"to": "owner", "text": "the oven is on"})
    assert (await store.outbox.rows())[0].message.channel == "email"
    with pytest.raises(RequestInvalid, match=r"owner\.aliases"):
        await OperationContext(store, None, accounts=ACCOUNTS, access=Access([], {})).call(
            "send", {"to": "owner", "text": "x"}
        )


async def test_mail_goes_into_the_thread_that_the_channel_names(store):
    """A channel with topics says where the conversation begins; without it nothing is promised."""
    email = Reachable()
    desk = OperationContext(store, None, accounts=ACCOUNTS, channels={"email": email})
    await desk.call("send", {"to": "email:bob@mail.test", "text": "Hello Bob\n\nHow are you?"})

    assert email.asked == [("bob@mail.test", "Hello Bob")]
    assert (await store.outbox.rows())[0].message.session == SessionKey(
        "email", "<thread-with-bob@mail.test>"
    )
    with pytest.raises(RequestInvalid, match="no such mailbox"):
        await desk.call("send", {"to": "email:nobody@mail.test", "text": "Hello"})
    with pytest.raises(NeedsDaemon, match="start it"):
        await OperationContext(store, None, accounts=ACCOUNTS).call(
            "send", {"to": "email:b@c", "text": "Hello"}
        )


@pytest.mark.parametrize(
    ("to", "hidden"),
    [
        ("matrix:@alice:hs.test", True),
        ("matrix:@owner:hs.test", True),
        ("email:bob@mail.test", True),
        ("matrix:!room:hs.test", False),
        ("matrix:#team:hs.test", False),
    ],
)
async def test_what_one_person_is_told_is_shown_to_nobody_who_comes_later(store, to, hidden):
    """Its line in the history has the scope of that person; a room's is everybody's there."""
    access = Access([Alias("matrix", "@owner:hs.test")], {})
    desk = OperationContext(store, None, accounts=ACCOUNTS, access=access, channels={"email": Reachable()})
    await desk.call("send", {"to": to, "text": "the heron is ill"})
    channel, _, place = to.partition(":")
    arrived = SessionKey(channel, "!where-it-arrived")
    (row,) = await store.outbox.rows()
    await store.outbox.sending(row)
    await store.outbox.record_send(row, "$1", into=arrived)
    (entry,) = await store.journal.lines()

    def sees(audience, person):
        mine = access.role(channel, person, verified=True) is Role.OWNER
        scope = str(scope_for(arrived, audience, mine, person))
        return not hidden_from(scope, private_in([entry.message.scope]))

    assert sees(Audience.DIRECT, place)
    assert sees(Audience.GROUP, "@guest:hs.test") is not hidden
    assert sees(Audience.DIRECT, "@guest:hs.test") is not hidden


@pytest.mark.parametrize(
    ("accounts", "channel"),
    [(ACCOUNTS, "matrix"), ({"home": "@bot:hs.test"}, ""), ({"email": "b@m.test"}, "")],
)
async def test_an_address_alone_is_one_on_the_only_channel_of_its_kind(store, accounts, channel):
    """The controls have no channel of the kind, so far as is known."""
    desk = OperationContext(store, None, accounts=accounts)
    if channel:
        await desk.call("send", {"to": "@alice:hs.test", "text": "hi"})
        assert [row.message.session for row in await store.outbox.rows()] == [
            SessionKey(channel, "@alice:hs.test")
        ]
    else:
        with pytest.raises(RequestInvalid, match="there is no channel '@alice'"):
            await desk.call("send", {"to": "@alice:hs.test", "text": "hi"})


@pytest.mark.parametrize(
    ("to", "text", "said"),
    [
        ("@alice", "hi", "'@alice' is not a destination; write owner, matrix:@person:server"),
        ("matrix", "hi", "is not a destination"),
        ("matrix:", "hi", "is not a destination"),
        ("matrix:@a b:hs", "hi", "is not a destination"),
        ("matrix:@alice", "hi", "is not an address on matrix"),
        (f"matrix:@{'a' * 1000}:hs.test", "hi", "too long for a person or a room"),
        ("terminal:main", "hi", "no channel 'terminal'"),
        ("matrix:@alice:hs.test", " \n", "the text is empty"),
    ],
)
async def test_what_cannot_be_sent_is_said_in_words(store, to, text, said):
    """Nothing is put into the outbox then."""
    with pytest.raises(RequestInvalid, match=said):
        await OperationContext(store, None, accounts=ACCOUNTS).call("send", {"to": to, "text": text})
    assert await store.outbox.rows() == []


async def test_the_command_leaves_a_message_for_the_next_start(tmp_path):
    """Without a daemon the home folder itself is written to; a channel that is not configured is refused."""
    (tmp_path / "squidbot.yaml").write_text(
        'channels: {matrix: {homeserver: "http://hs", user_id: "@bot:hs.test", password: pw}}\n'
    )
    (tmp_path / "squidbot.yaml").chmod(0o600)
    store = await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock())
    await store.aclose()

    async def command(*arguments):
        send = partial(squidbot, tmp_path, "send", *arguments, stdin="From a pipe")
        done = await anyio.to_thread.run_sync(send)
        return done.returncode, done.stdout, done.stderr

    said = await command("matrix:@alice:hs.test", "**Hello**")
    piped = await command("matrix:#team:hs.test", "--json")
    refused = await command("email:bob@mail.test", "Hello")
    store = await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock())
    rows = await store.outbox.rows()
    await store.aclose()

    assert said == (0, "the message to matrix:@alice:hs.test is sent when the daemon runs\n", "")
    assert piped[0] == 0
    assert refused[0] == 2
    assert "no channel 'email'" in refused[2]
    assert [(row.message.session.conversation, row.message.text) for row in reversed(rows)] == [
        ("@alice:hs.test", "**Hello**"),
        ("#team:hs.test", "From a pipe"),
    ]
