"""Deliveries against a scripted homeserver: what each answer means, and what must never happen twice."""

import pytest

from agent_core.messages import OutboundMessage, SessionKey
from channels.base import ChannelAuthFailed, ChannelUnavailable, DeliveryFailed, DeliveryUncertain
from channels.matrix.client.homeserver import HttpAnswer, LinkBroken, MatrixCredentials
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.config import MatrixConfig
from channels.matrix.events.outbound_events import build_content, transaction_id
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.send.event_sender import EventSender
from tests.clock import EPOCH, ManualClock
from tests.doubles.homeserver import ScriptedHomeserver, failure, member

BOT, ROOM = "@bot:hs.test", "!room:hs.test"
SEND = r"/send/m\.room\.message/"


class Setup:
    def __init__(self, tmp_path, *, encrypted=False, current=True, known=True):
        self.server = ScriptedHomeserver()
        self.current = current
        self.steps = []
        config = MatrixConfig(homeserver="http://hs", user_id=BOT, password="pw")
        rooms = self.rooms = Rooms(BOT)
        state = [member(BOT)]
        if encrypted:
            state.append({"type": "m.room.encryption", "state_key": "", "content": {}})
        if known:
            rooms.update({"rooms": {"join": {ROOM: {"state": {"events": state}}}}})
        login = MatrixLogin(config, self.server, tmp_path, ManualClock())
        self.now = EPOCH
        self.sending = EventSender(
            config, self.server, login, rooms, is_current=lambda: self.current, now=lambda: self.now
        )

    async def deliver(self, **fields):
        values = {
            "id": "row-1", "channel": "matrix", "account": BOT, "session": SessionKey("matrix", ROOM),
            "text": "hi", "created_at": EPOCH,
        }  # fmt: skip
        self.message = OutboundMessage(**{**values, **fields})
        return await self.sending.deliver(self.message, uncertain=self.mark)

    async def mark(self):
        self.steps.append(len(self.server.asked("PUT", SEND)))


@pytest.fixture
def setup(tmp_path):
    return lambda **options: Setup(tmp_path, **options)


async def test_uncertainty_is_recorded_before_the_request(setup):
    """The mark is made before the body leaves, and the key comes from the message's id."""
    it = setup()
    it.server.on("PUT", SEND, HttpAnswer(200, {"event_id": "$e"}))
    receipt = await it.deliver()

    assert receipt.provider_id == "$e"
    assert it.steps == [0]
    assert it.server.asked("PUT", SEND)[0].path.endswith(transaction_id(it.message.id))


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (failure(403, "M_FORBIDDEN"), DeliveryFailed),
        (failure(404, "M_NOT_FOUND"), DeliveryFailed),
        (failure(413, "M_TOO_LARGE"), DeliveryFailed),
        (failure(413), DeliveryFailed),
        (failure(400, "M_BAD_JSON"), DeliveryFailed),
        (failure(404, "M_UNRECOGNIZED"), ChannelUnavailable),
        (failure(403, "M_RESOURCE_LIMIT_EXCEEDED"), ChannelUnavailable),
        (failure(403, "M_USER_DEACTIVATED"), ChannelAuthFailed),
        (failure(429, "M_LIMIT_EXCEEDED"), ChannelUnavailable),
        (failure(403), DeliveryUncertain),
        (failure(404), DeliveryUncertain),
        (failure(500, "M_UNKNOWN"), DeliveryUncertain),
        (failure(502), DeliveryUncertain),
        (HttpAnswer(200, {}), DeliveryUncertain),
        (LinkBroken("cut", maybe_taken=True), DeliveryUncertain),
        (LinkBroken("refused", maybe_taken=False), ChannelUnavailable),
    ],
)
async def test_what_an_answer_means(setup, reply, error):
    """Only the homeserver's own word is final; what is not known is called uncertain; nothing is repeated here."""
    it = setup()
    it.server.on("PUT", SEND, reply)
    with pytest.raises(error):
        await it.deliver()

    assert len(it.server.asked("PUT", SEND)) == 1


async def test_plain_text_never_reaches_an_encrypted_room(setup):
    """Known as encrypted, not current, not known at all or only by half: no request with the text is made."""
    for it in (setup(encrypted=True), setup(current=False), setup(known=False), setup()):
        it.server.on("GET", "/state/m.room.encryption", HttpAnswer(200, {}))
        it.server.on("PUT", SEND, HttpAnswer(200, {"event_id": "$e"}))
        with pytest.raises(DeliveryFailed, match="encrypted"):
            await it.deliver()
        assert it.server.asked("PUT", "") == []
        assert it.steps == []


async def test_a_room_that_becomes_encrypted_while_a_message_is_on_its_way_gets_no_plain_text(setup):
    """The look at who is there takes its time; what ``/sync`` says meanwhile counts."""
    it = setup()
    it.server.on("PUT", SEND, HttpAnswer(200, {"event_id": "$e"}))

    def members(call):
        it.rooms.is_secret(ROOM)
        return HttpAnswer(200, {"chunk": [member(BOT), member("@alice:hs.test")]})

    it.server.on("GET", "/members", members)
    with pytest.raises(DeliveryFailed, match="encrypted"):
        await it.deliver(context={"route": {"direct": True, "sender": "@alice:hs.test"}})
    assert it.server.asked("PUT", "") == []


async def test_a_room_is_asked_about_only_when_needed(setup):
    """
    What ``/sync`` has not said is asked once for each room; while nothing comes by ``/sync``, each time. A plain room
    is then written to.
    """
    for current, questions in ((True, 1), (False, 3)):
        it = setup(current=current)
        it.server.on("PUT", SEND, HttpAnswer(200, {"event_id": "$e"}))
        for _ in range(3):
            await it.deliver()
        assert len(it.server.asked("GET", "/state/m.room.encryption")) == questions


async def test_when_the_question_fails_nothing_is_sent(setup):
    """If it cannot be found out whether a room is encrypted, the message waits."""
    for reply in (failure(502), LinkBroken("cut", maybe_taken=True), failure(500, "M_UNKNOWN")):
        it = setup(known=False)
        it.server.on("GET", "/state/m.room.encryption", reply)
        with pytest.raises(ChannelUnavailable):
            await it.deliver()
        assert it.server.asked("PUT", "") == []


async def test_a_refused_token_is_renewed_and_the_message_sent(setup):
    """A token that was revoked costs one login; the message goes out in the same call."""
    it = setup()
    it.server.on(
        "POST", "/login$", HttpAnswer(200, {"user_id": BOT, "device_id": "DEV", "access_token": "t2"})
    )
    it.server.on(
        "PUT", SEND, failure(401, "M_UNKNOWN_TOKEN", soft_logout=True), HttpAnswer(200, {"event_id": "$e"})
    )
    receipt = await it.deliver()

    assert receipt.provider_id == "$e"
    assert [call.token for call in it.server.asked("PUT", SEND)] == ["token-1", "t2"]
    assert it.server.asked("POST", "/login$")[0].body["device_id"] == "DEV"


async def test_a_younger_device_looks_before_it_repeats(setup):
    """A message that may have gone out from an earlier device is searched for; found, it is not sent again."""
    it = setup()
    it.server.credentials = MatrixCredentials(BOT, "NEW", "t", since=EPOCH.timestamp() + 10)
    it.server.on("PUT", SEND, HttpAnswer(200, {"event_id": "$second"}))
    sent = OutboundMessage(
        id="row-1",
        channel="matrix",
        account=BOT,
        session=SessionKey("matrix", ROOM),
        text="hi",
        created_at=EPOCH,
    )
    event = {"sender": BOT, "event_id": "$first", "content": build_content(sent)}
    it.server.on(
        "GET",
        "/messages$",
        HttpAnswer(200, {"chunk": [{"x": 1}], "end": "t1"}),
        HttpAnswer(200, {"chunk": [event]}),
    )
    receipt = await it.deliver()

    assert receipt.provider_id == "$first"
    assert it.server.asked("PUT", SEND) == []
    receipt = await it.deliver(id="row-2")
    assert receipt.provider_id == "$second"


async def test_too_long_a_text_is_cut_into_events(setup):
    """What no event can hold becomes several, each with a key of its own that is the same in every try."""
    it = setup()
    it.server.on("PUT", SEND, *[HttpAnswer(200, {"event_id": f"$e{number}"}) for number in range(8)])
    for _ in range(2):
        await it.deliver(text="word " * 14_000)

    calls = it.server.asked("PUT", SEND)
    half = len(calls) // 2
    assert half >= 2
    assert [call.path for call in calls[:half]] == [call.path for call in calls[half:]]
    assert len({call.path for call in calls[:half]}) == half
    assert "".join(call.body["body"] for call in calls[:half]).replace(" ", "") == "word" * 14_000


async def test_a_server_that_takes_less_gets_smaller_events(setup):
    """Refused as too large, a message is halved until it is taken; what can be no smaller is refused for good."""
    it = setup()

    def picky(call):
        if len(call.body["body"]) > 3000:
            return failure(413, "M_TOO_LARGE")
        return HttpAnswer(200, {"event_id": "$" + call.path.rpartition("/")[2]})

    it.server.on("PUT", SEND, picky)
    receipt = await it.deliver(text="word " * 2000)
    taken = [call for call in it.server.asked("PUT", SEND) if len(call.body["body"]) <= 3000]

    assert "".join(call.body["body"] for call in taken).replace(" ", "") == "word" * 2000
    assert receipt.provider_id == "$" + taken[0].path.rpartition("/")[2]
    it.server.on("PUT", SEND, failure(413, "M_TOO_LARGE"))
    with pytest.raises(DeliveryFailed, match="too large"):
        await it.deliver(id="row-2", text="word " * 2000)
