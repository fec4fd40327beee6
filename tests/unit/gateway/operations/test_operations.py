"""What a person can ask, on a real store and real files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent_core.messages import (
    Amendment,
    Audience,
    MessageContext,
    OutboundKind,
    Sender,
    SessionKey,
)
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage.jsonl_memory import JsonlMemory
from gateway.errors import NotFound
from gateway.operations import render
from gateway.operations.mcp_operations import no_server
from gateway.operations.memory_operations import NotCurrent
from gateway.operations.operation_arguments import RequestInvalid, parse_scope, show_scope
from gateway.operations.operation_context import OperationContext
from gateway.routing.access import Access, Alias
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Completion, NewOutbound, Pending
from gateway.store.wakeups import Wakeups
from gateway.system.home import open_home
from tests.clock import EPOCH, LoopClock
from tests.operations_bench import ROOM, Bench, inbound

OWNER = MemoryScope(ScopeKind.OWNER)


@pytest.fixture
def home(tmp_path):
    return open_home(tmp_path / "h")


@pytest.fixture
async def bench(home):
    wakeups, woken = Wakeups(), []
    wakeups.session.connect(lambda work: woken.append(work.session))
    store = await SqliteQueue.open(home.database, clock=LoopClock(), wakeups=wakeups)
    bench = Bench(store, JsonlMemory(home.root, clock=LoopClock()))
    bench.woken = woken
    yield bench
    await store.aclose()


class TestNames:
    async def test_a_conversation_without_a_room_is_named_by_its_person(self, bench):
        """A private chat by name and address, a mail by its subject, a stranger's without words; ids stay."""
        dm, thread, other = ROOM, SessionKey("matrix", "thread"), SessionKey("matrix", "group")
        eve = Sender(address="eve@mail.test", name="Eve", verified=True)
        ann = Sender(address="@alice:hs.test", name="Alice", verified=True)
        said = [
            inbound(1).model_copy(update={"sender": ann, "audience": Audience.DIRECT}),
            inbound(2, thread).model_copy(
                update={"sender": eve, "context": MessageContext(subject="Trains")}
            ),
            inbound(3, other).model_copy(update={"audience": Audience.GROUP}),
        ]
        await bench.accepted(*said)
        for each in said:
            line = Message(role="user", content="x", id=each.native_id, timestamp=EPOCH)
            await bench.memory.append_message(str(each.session), line)
        answer = await bench.ask.sessions_list()
        names = {row["session"]: row.get("called") for row in answer["sessions"]}
        assert names == {
            str(dm): "Alice (@alice:hs.test)",
            str(thread): "Eve (eve@mail.test)",
            str(other): None,
        }
        shown = render.sessions(answer)
        assert "Alice (@alice:hs.test)" in shown
        assert str(dm) in shown
        hers = replace(bench.ask.context, access=Access([Alias("matrix", "eve@mail.test")], {}))
        (row,) = [r for r in (await hers.call("sessions_list", {}))["sessions"] if "thread" in r["session"]]
        assert row["called"] == "Trains (eve@mail.test)"


class TestInbox:
    async def test_messages_are_listed_newest_first_with_a_short_text(self, bench):
        """States and sessions filter; a long text is cut in the list and whole when shown."""
        first, second = await bench.accepted(inbound(1, text="x" * 500), inbound(2, text="a\nb"))
        rows = (await bench.ask.inbox_list())["rows"]
        assert [row["id"] for row in rows] == [second, first]
        assert rows[0]["text"] == "a b"
        assert len(rows[1]["text"]) == 80
        assert (await bench.ask.inbox_show(first))["row"]["text"] == "x" * 500
        assert (await bench.ask.inbox_list(states=["dead"]))["rows"] == []
        assert len((await bench.ask.inbox_list(session=str(ROOM), limit=1))["rows"]) == 1

    async def test_a_dead_message_can_be_tried_again_and_its_session_is_woken(self, bench):
        """The error is shown, and a retry makes it ready."""
        row = await bench.dead(1)
        shown = await bench.ask.inbox_show(row)
        assert (shown["row"]["state"], shown["row"]["error"]) == ("dead", "the model said 400")
        assert shown["outbound"][0]["text"] == "sorry"
        bench.woken.clear()
        assert (await bench.ask.inbox_retry(row))["changed"]
        assert bench.woken == [ROOM]
        assert (await bench.ask.inbox_show(row))["row"]["state"] == "ready"

    async def test_what_its_sender_deleted_is_not_shown_and_not_tried_again(self, bench):
        """Also while it is answered, when the turn still needs the text; the row and its state stay."""
        row = await bench.dead(1)
        gone = (await bench.store.inbox.row(row))[0].message
        running, other = await bench.accepted(inbound(2, text="secret"), inbound(3, text="open"))
        first = (await bench.store.inbox.row(running))[0].message
        turn = await bench.store.turns.claim(first.session, merge=2)
        assert len(turn.rows) == 2
        for message in (gone, first):
            deleted = Amendment(kind="withdraw", native_id=message.native_id, sender=message.sender.address)
            await bench.store.inbox.accept(message.channel, message.account, [], {}, [deleted])
        for number in (row, running):
            assert (await bench.ask.inbox_show(number))["row"]["text"] == "[deleted by its sender]"
        assert (await bench.ask.inbox_show(other))["row"]["text"] == "open"
        with pytest.raises(RequestInvalid, match="deleted by its sender"):
            await bench.ask.inbox_retry(row)
        assert (await bench.ask.inbox_show(row))["row"]["state"] == "dead"

    async def test_line_breaks_of_a_sender_fake_no_lines_of_ours(self, bench):
        """Neither of a message, nor of a conversation: what people wrote is marked line by line."""
        fake = "hello\n\nreply 9: sent\n\n@alice:hs.test 2026-01-01 00:00:00\rnotice 3: sent\u2028state  dead"
        (row,) = await bench.accepted(inbound(1, text=fake))
        said = Message(role="user", content=fake, sender="@bob:hs.test", id="m0", timestamp=EPOCH)
        await bench.memory.append_message(str(ROOM), said)
        for shown in (
            render.inbox_row(await bench.ask.inbox_show(row)),
            render.session(await bench.ask.sessions_show(str(ROOM))),
        ):
            for line in ("reply 9: sent", "notice 3: sent", "state  dead"):
                assert f"> {line}" in shown.splitlines()
                assert line not in shown.splitlines()

    async def test_what_has_not_failed_is_not_tried_again(self, bench):
        """Nothing changes, and that is said."""
        [row] = await bench.accepted(inbound(1))
        bench.woken.clear()
        assert not (await bench.ask.inbox_retry(row))["changed"]
        assert bench.woken == []

    async def test_a_message_can_be_given_up(self, bench):
        """It is ignored from then on."""
        [row] = await bench.accepted(inbound(1))
        assert (await bench.ask.inbox_drop(row))["changed"]
        assert await bench.store.turns.claim(ROOM) is None

    async def test_a_message_is_let_out_of_quarantine_once(self, bench):
        """Its session is woken; what is not in quarantine cannot be let out."""
        [row] = await bench.store.inbox.accept("matrix", "bot", [Pending(inbound(1), quarantine="why")], {})
        [listed] = (await bench.ask.inbox_list(states=["quarantined"]))["rows"]
        assert (listed["id"], listed["error"], listed["text"]) == (row.id, "why", "hello")
        assert (await bench.ask.call("inbox_release", {"id": row.id}))["changed"]
        assert bench.woken == [ROOM]
        assert not (await bench.ask.call("inbox_release", {"id": row.id}))["changed"]
        assert (await bench.store.turns.claim(ROOM)).head.message.text == "hello"

    async def test_a_draft_is_sent_or_not_as_a_person_says(self, bench):
        """Both happen once; in other words if there are any; and nobody is told of what was thrown away."""
        sent, thrown = await bench.store.outbox.post(
            [NewOutbound("matrix", "bot", ROOM, text, hold=True) for text in ("one", "two")]
        )
        listed = (await bench.ask.call("drafts_list", {}))["rows"]
        assert [(row["id"], row["text"]) for row in listed] == [(thrown.id, None), (sent.id, None)]
        assert (await bench.ask.call("drafts_show", {"id": sent.id}))["text"] == "one"
        assert (await bench.ask.call("drafts_approve", {"id": sent.id, "text": "better"}))["changed"]
        assert (await bench.ask.call("drafts_reject", {"id": thrown.id, "why": "rude"}))["changed"]
        for name in ("drafts_approve", "drafts_reject"):
            for one, state in ((sent, "pending"), (thrown, "dead")):
                answer = await bench.ask.call(name, {"id": one.id})
                assert (answer["changed"], answer["draft"]["state"]) == (False, state)
        assert [row.message.text for row in await bench.store.outbox.next_sends("matrix", "bot")] == [
            "better"
        ]
        report = await bench.ask.status(reasons=True)
        assert report["stuck"] == []
        with pytest.raises(NotFound, match="--held"):
            await bench.ask.call("drafts_approve", {"id": 99})

    async def test_the_report_says_what_waits_for_a_person(self, bench):
        """Drafts and quarantined messages are counted, with the words that show them."""
        await bench.store.outbox.post([NewOutbound("matrix", "bot", ROOM, "draft", hold=True)])
        await bench.store.inbox.accept("matrix", "bot", [Pending(inbound(1), quarantine="why")], {})
        text = render.status(await bench.ask.status())
        assert "drafts that wait for you: 1 (squidbot inbox list --held)" in text
        assert "messages in quarantine: 1 (squidbot inbox list --quarantine)" in text

    @pytest.mark.parametrize("name", ["inbox_show", "inbox_retry", "inbox_drop", "inbox_release"])
    async def test_a_number_that_does_not_exist_is_told(self, bench, name):
        """With where to look."""
        with pytest.raises(NotFound, match="inbox list"):
            await bench.ask.call(name, {"id": 99})

    async def test_an_unknown_state_names_the_known_ones(self, bench):
        """A typing error does not look like an empty inbox."""
        with pytest.raises(RequestInvalid, match="known: ready"):
            await bench.ask.inbox_list(states=["deda"])

    @pytest.mark.parametrize("limit", [0, -1])
    async def test_a_limit_of_nothing_is_refused_in_words(self, bench, limit):
        """Instead of showing one row that was not asked for."""
        with pytest.raises(RequestInvalid, match="must be 1 or more"):
            await bench.ask.inbox_list(limit=limit)


class TestSessions:
    async def test_sessions_are_listed_with_their_size(self, bench):
        """Count and time of the last message."""
        await bench.talked(5)
        answer = await bench.ask.sessions_list()
        assert answer["total"] == 1
        assert answer["sessions"][0] | {"damaged_lines": 0} == {
            "session": str(ROOM),
            "messages": 5,
            "unconsolidated": 5,
            "damaged_lines": 0,
            "last_at": EPOCH.isoformat(),
        }

    async def test_a_session_is_shown_with_its_newest_messages_and_what_waits(self, bench):
        """Newest last, as one reads."""
        await bench.talked(30)
        await bench.accepted(inbound(1, text="still waiting"))
        answer = await bench.ask.sessions_show(str(ROOM), limit=3)
        assert [message["content"] for message in answer["newest"]] == ["text 27", "text 28", "text 29"]
        assert answer["waiting"][0]["text"] == "still waiting"

    @pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 20])
    async def test_an_export_is_complete_and_in_order_whatever_the_page(self, bench, count):
        """Page by page nothing is lost, nothing comes twice, also what is in the summary already."""
        await bench.talked(count)
        await bench.accepted(inbound(1))
        if count:
            await bench.memory.save_consolidation(str(ROOM), summary="s", cursor=count // 2)
        found, start = [], 0
        while start is not None:
            page = await bench.ask.sessions_page(str(ROOM), start=start, limit=7)
            found += [message["content"] for message in page["messages"]]
            start = page["next"]
        assert found == [f"text {n}" for n in range(count)]

    async def test_a_reset_forgets_for_the_model_and_keeps_the_file(self, bench, home):
        """Nothing of it is in the next prompt, what waits is dropped, the history is as it was."""
        await bench.talked(4)
        await bench.memory.save_session_summary(str(ROOM), "old summary")
        [row] = await bench.accepted(inbound(1))
        before = {path: path.read_bytes() for path in (home.root / "sessions").glob("*.jsonl")}
        assert (await bench.ask.sessions_reset(str(ROOM)))["forgotten"] == 4
        assert (await bench.memory.load_history(str(ROOM))).messages == ()
        assert await bench.memory.load_session_summary(str(ROOM)) == ""
        assert (await bench.ask.inbox_show(row))["row"]["state"] == "ignored"
        assert before and {path: path.read_bytes() for path in before} == before

    @pytest.mark.parametrize("name", ["sessions_show", "sessions_page", "sessions_reset"])
    async def test_an_unknown_session_is_told(self, bench, name):
        """Neither made nor reset by a typing error."""
        with pytest.raises(NotFound, match="sessions list"):
            await bench.ask.call(name, {"session": "matrix/!other"})
        with pytest.raises(RequestInvalid, match="is not a session"):
            await bench.ask.call(name, {"session": "no session"})


class TestMemory:
    async def test_versions_are_listed_and_brought_back(self, bench):
        """Undo writes the earlier text as a new version; undo of that brings the later one back."""
        for text in ("one", "two"):
            await bench.memory.save_global_memory(OWNER, text, session_id=str(ROOM), turn="t")
        assert (await bench.ask.memory_show())["text"] == "two"
        assert [one["text"] for one in (await bench.ask.memory_history())["versions"]] == ["one", "two"]
        undone = await bench.ask.memory_undo()
        assert (undone["text"], undone["version"], undone["restored"]) == ("one", 3, 1)
        assert (await bench.ask.memory_undo())["text"] == "two"
        assert (await bench.ask.memory_undo(to=1))["text"] == "one"
        assert (await bench.ask.memory_undo(to=0))["text"] == ""

    async def test_a_document_is_written_by_hand(self, bench):
        """As a new version; if somebody was faster than the version it is based on, nothing is."""
        assert (await bench.ask.memory_write(text="one"))["version"] == 1
        assert (await bench.ask.memory_write(text="two", version=1))["version"] == 2
        with pytest.raises(NotCurrent, match="at version 2 now"):
            await bench.ask.memory_write(text="three", version=1)
        assert (await bench.ask.memory_show())["text"] == "two"
        assert [one["session"] for one in (await bench.ask.memory_history())["versions"]] == ["", ""]

    async def test_there_is_nothing_to_undo_in_an_empty_memory(self, bench):
        """And a version that never was is told with those that were."""
        with pytest.raises(NotFound):
            await bench.ask.memory_undo()
        await bench.memory.save_global_memory(OWNER, "one")
        with pytest.raises(NotFound, match="known: 0, 1"):
            await bench.ask.memory_undo(to=7)

    async def test_everybody_has_a_memory_of_their_own(self, bench):
        """Scopes are written as text, and never mixed."""
        await bench.memory.save_global_memory(MemoryScope(ScopeKind.PERSON, "bob@x.test"), "bob's")
        assert (await bench.ask.memory_show("person:bob@x.test"))["text"] == "bob's"
        assert (await bench.ask.memory_show())["text"] == ""
        assert (await bench.ask.memory_list())["scopes"] == ["person:bob@x.test"]
        with pytest.raises(NotFound, match=r"the memories are: person:bob@x\.test"):
            await bench.ask.memory_show("person:alice@x.test")

    @pytest.mark.parametrize("text", ["owner", "person:@a:b", "room:matrix/!x%3ay"])
    def test_scopes_are_read_as_they_are_written(self, text):
        """The two forms are inverse."""
        assert show_scope(parse_scope(text)) == text

    @pytest.mark.parametrize("text", ["", "me", "person:", "room:", "room:x", "owner:x"])
    def test_other_scopes_are_refused(self, text):
        """Instead of showing somebody's memory by accident."""
        with pytest.raises(RequestInvalid):
            parse_scope(text)


class TestStatus:
    async def test_counts_and_what_is_stuck_are_told_without_texts_or_people(self, bench):
        """The same report goes to /status, so nothing personal may be in it."""
        row = await bench.dead(1)
        await bench.accepted(inbound(2, text="private words"))
        report = await bench.ask.status()
        assert report["running"] is False
        assert report["work"]["inbox"]["dead"] == 1
        one = {"what": "not answered", "inbox": row, "name": str(row), "channel": "matrix", "why": None}
        assert report["stuck"] == [one]
        assert "alice" not in json.dumps(report) and "private" not in json.dumps(report)

    @pytest.mark.parametrize("delivered", [True, False])
    async def test_a_delivered_apology_settles_what_a_person_must_know(self, bench, delivered):
        """Only its count is told then; one that was not delivered leaves the message with the operator."""
        [row] = await bench.accepted(inbound(1))
        sorry = NewOutbound("matrix", "bot", ROOM, "sorry", OutboundKind.APOLOGY)
        [apology] = await bench.store.turns.dead_letter(
            await bench.store.turns.claim(ROOM), "the model said 400", [sorry]
        )
        await bench.store.outbox.sending(apology)
        if delivered:
            await bench.store.outbox.record_send(apology, "$x")
        else:
            await bench.store.outbox.record_failure(apology, "no such room", delay_s=None)
        report = await bench.ask.status()
        assert report["given_up"] == int(delivered)
        assert [one["inbox"] for one in report["stuck"]] == ([] if delivered else [row, row])
        assert ("the sender was told so: 1" in render.status(report)) is delivered
        assert ("needs you" in render.status(report)) is not delivered
        assert ("1 not answered" in render.status(report)) is delivered
        assert ("1 failed" in render.status(report).partition("outbox")[0]) is not delivered

    @pytest.mark.parametrize("why", ["no such person", "forgotten"])
    async def test_what_answers_nothing_has_a_name(self, bench, why):
        """`squidbot inbox show d1` shows why it was not sent; what was erased needs nobody."""
        sent = NewOutbound("matrix", "bot", ROOM, "hello", OutboundKind.MESSAGE)
        [row] = await bench.store.outbox.post([sent])
        await bench.store.outbox.sending(row)
        await bench.store.outbox.record_failure(row, why, delay_s=None)
        shown = render.status(await bench.ask.status(reasons=True))
        assert (f"\n  d{row.id}  matrix: not sent: {why}" in shown) is (why != "forgotten")
        assert f"error     {why}" in render.draft(await bench.ask.drafts_show(row.id))
        given_up = await bench.ask.drafts_reject(row.id)
        assert given_up["changed"] is (why != "forgotten")
        assert "needs you" not in render.status(await bench.ask.status(reasons=True))

    async def test_the_reasons_are_told_to_who_asks_for_them(self, bench):
        """Why it is stuck, and what is only waiting for another try."""
        row = await bench.dead(1)
        report = await bench.ask.status(reasons=True)
        why = (await bench.ask.inbox_show(row))["row"]["error"]
        assert why and report["stuck"][0]["why"] == why
        assert report["trying"] == []

    async def test_the_daemons_own_report_is_part_of_it(self, home, bench):
        """What only the daemon knows comes through."""

        async def live():
            return {"pid": 42, "work": {}}

        report = await OperationContext(bench.store, bench.memory, status=live).call("status", {})
        assert (report["pid"], report["running"]) == (42, True)


async def test_answered_messages_do_not_count_as_stuck(bench):
    """A normal day's status has nothing to do for the operator."""
    await bench.accepted(inbound(1))
    turn = await bench.store.turns.claim(ROOM)
    rows = await bench.store.turns.complete(
        turn, Completion(outbound=[NewOutbound("matrix", "bot", ROOM, "hi")])
    )
    await bench.store.outbox.sending(rows[0])
    await bench.store.outbox.record_send(rows[0], "$x")
    report = await bench.ask.status()
    assert report["stuck"] == []
    assert report["work"]["inbox"]["settled"] == 1


def test_a_server_that_is_not_in_the_settings_is_told_with_those_that_are():
    """Or that there are none."""
    assert no_server("x", ["one", "two"]).endswith("in the settings; the servers are: one, two")
    assert no_server("x", []).endswith("in the settings, which name no server (mcp.servers)")
