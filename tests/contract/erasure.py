"""What erasing a person promises of the stores over any engine; to be run with a store, as a contract is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from agent_core.messages import Background, Sender, SessionKey
from agent_core.models import Purpose, Usage
from gateway.store.model import APPROVAL
from gateway.store.sql import erasure_statements
from gateway.store.sql.engine import NOTHING
from gateway.store.stores import Step
from tests.clock import EPOCH
from tests.contract.queue_data import BOT, ROOM, accept, answer, claim, pending

EVE = Sender(address="Eve@Example.org", name="Eve", verified=True)
MAIL = SessionKey("matrix", "!eve:hs.test")


async def erased(
    store: Any, *addresses: str, sessions: tuple[str, ...] = ()
) -> erasure_statements.PersonRows:
    """The person's rows, which are gone now."""
    found: erasure_statements.PersonRows = await store.database.writer.call(
        "forget",
        lambda db: erasure_statements.erase(db, addresses, sessions, (), now=EPOCH.timestamp()),
        locks=NOTHING,
    )
    return found


class ErasureContract:
    """Held by every engine. The fixture ``store`` comes from whoever runs it."""

    async def test_a_person_is_found_in_whatever_spelling_and_removed(self, store: Any) -> None:
        """Their messages, the answers, the steps and the lines; those of others stay."""
        await accept(store, "theirs", sender=EVE, session=MAIL)
        await accept(store, "others")
        for session in (MAIL, ROOM):
            await answer(store, await claim(store, session))
        await store.usage.add(MAIL, Usage(model="m", calls=2, prompt_tokens=7), Purpose.CHAT)

        found = await erased(store, "eve@example.org ", sessions=(str(MAIL),))

        assert [row["native_id"] for row in found.inbox] == ["theirs"]
        assert (len(found.outbox), len(found.journal), len(found.usage)) == (1, 2, 1)
        assert [row.message.native_id for row in await store.inbox.rows()] == ["others"]
        assert [row.message.session for row in await store.outbox.rows()] == [ROOM]
        assert {line.session for line in await store.journal.lines()} == {ROOM}
        [spent] = await store.usage.rows()
        assert (spent.session, spent.usage.prompt_tokens) == (erasure_statements.FORGOTTEN, 7)
        assert (await erased(store, "eve@example.org", sessions=(str(MAIL),))).counts()["inbox"] == 0

    async def test_what_comes_again_is_not_believed(self, store: Any) -> None:
        """The digest of a key stays, and the newest number is not given out again."""
        [first] = await accept(store, "theirs", sender=EVE)
        await erased(store, "eve@example.org")
        assert list(await accept(store, "theirs", sender=EVE)) == []
        [later] = await accept(store, "new")
        assert later.id > first.id

    async def test_what_they_have_decided_is_not_remembered(self, store: Any) -> None:
        """The decision of another conversation is."""
        request = {"asked": [], "call": {"name": "effect"}, "until": (EPOCH + timedelta(days=1)).isoformat()}
        for session, name, native_id in ((MAIL, "a000001", "theirs"), (ROOM, "a000002", "others")):
            await accept(store, native_id, sender=EVE, session=session)
            turn = await claim(store, session)
            step = Step(1, APPROVAL, name, {"name": name, **request}, None)
            await store.approvals.ask(turn, step, [], why="asks", delay_s=60)
            await store.approvals.decide(name, {"verdict": "refused"})
            assert await store.approvals.find_decision(name) == (session, "refused", "effect")
        await erased(store, sessions=(str(MAIL),))
        assert await store.approvals.find_decision("a000001") is None
        assert await store.approvals.find_decision("a000002") == (ROOM, "refused", "effect")

    async def test_their_words_go_out_of_the_questions_of_others(self, store: Any) -> None:
        """What was said before a question stands in its row, and in thousands of other rows nothing changes."""
        said = (Background(kind="talk", sender="eve@example.org", text="my secret"),)
        quiet = [pending(f"n{number}") for number in range(1100)]
        await store.inbox.accept("matrix", BOT, [*quiet, pending("asks", background=said)], {})
        await erased(store, "eve@example.org")
        row = await store.inbox.find_by_key("matrix", BOT, "asks")
        assert row.message.background == ()
        assert (await store.inbox.find_by_key("matrix", BOT, "n7")).message.text == "text of n7"

    async def test_a_file_is_needed_as_long_as_a_row_names_it(self, store: Any) -> None:
        """Of names that nobody uses none is found."""
        await accept(store, "a", text="see attachments/ab/1.png")
        names = {"attachments/ab/1.png", "attachments/cd/2.png"}
        found = await store.database.reader.call(
            "names", lambda db: erasure_statements.named_files(db, names)
        )
        assert found == {"attachments/ab/1.png"}
