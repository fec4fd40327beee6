"""The black-box checks of an email channel that stand nowhere else (E of `tests/data/promised_checks.txt`)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from devservers import MailServer, text_of
from gateway.store.states import InboxState, OutboxState
from tests.integration.mail_world import MailWorld, mail_world, server_of_people

server = server_of_people()


async def send(one: MailWorld, text: str = "hello", subject: str = "Hi", **more: str) -> str:
    return await run_sync(lambda: one.alice.send(one.bot, subject, text, **more))


async def until_settled(one: MailWorld, message_id: str) -> None:
    await one.row(lambda row: row.message.context.route.get("message_id") == message_id, InboxState.SETTLED)


async def test_one_mail_one_answer(server: MailServer, tmp_path: Path) -> None:
    """In two versions, threaded, marked as automatic; the question is read, answered and filed; then silence."""
    async with mail_world(server, tmp_path, processed_folder="Processed") as one:
        asked = await send(one, "How are you?", "Lunch", references="<root@peer.test> <mid@peer.test>")
        answer = await one.answer_to(asked)
        bot = server.peer(one.bot.partition("@")[0])
        with anyio.fail_after(60):
            while not await run_sync(lambda: "Processed" in bot.folders() and bot.list("Processed")):
                await anyio.sleep(0.1)
        flags = await run_sync(bot.flags, "Processed")
        filed = await run_sync(bot.list, "Processed")
        left = [mail for mail in await run_sync(bot.list) if mail["Message-ID"] == asked]
        copies = await run_sync(bot.list, "Sent")
        mails = await run_sync(one.alice.list)
    assert [str(mail["Message-ID"]) for mail in mails] == [str(answer["Message-ID"])]
    assert (answer["Subject"], answer["Auto-Submitted"]) == ("Re: Lunch", "auto-replied")
    assert str(answer["References"]).split() == ["<root@peer.test>", "<mid@peer.test>", asked]
    assert [part.get_content_type() for part in answer.iter_parts()] == ["text/plain", "text/html"]
    assert ([str(mail["Message-ID"]) for mail in filed], left) == ([asked], [])
    assert {"\\Seen", "\\Answered"} <= set(flags[0].split())
    assert [str(mail["Message-ID"]) for mail in copies] == [str(answer["Message-ID"])]


async def test_two_conversations_at_once(server: MailServer, tmp_path: Path) -> None:
    """Three mails of one thread and one of another: four answers, each where it belongs, in two sessions."""
    async with mail_world(server, tmp_path) as one:
        root = await send(one, "apple 1", "Fruit")
        asked = {root: "apple 1"}
        for number in (2, 3):
            key = await send(one, f"apple {number}", "Re: Fruit", in_reply_to=root, references=root)
            asked[key] = f"apple {number}"
        other = await send(one, "nut 1", "Nuts")
        asked[other] = "nut 1"
        answers = {key: await one.answer_to(key) for key in asked}
        for key in asked:
            await until_settled(one, key)
        rows = await one.built.store.inbox.rows(states=[InboxState.SETTLED], limit=50)
        mails = await run_sync(one.alice.list)
    sessions = {str(row.message.context.route["message_id"]): str(row.message.session) for row in rows}
    assert len(mails) == 4
    for key, words in asked.items():
        assert words in text_of(answers[key])
        assert not any(each in text_of(answers[key]) for each in set(asked.values()) - {words})
    assert len(set(sessions.values())) == 2
    assert sessions[other] not in {sessions[key] for key in asked if key != other}


async def test_notices_of_absence(server: MailServer, tmp_path: Path) -> None:
    """Right behind an answer: the field of RFC 3834 decides; the words of a subject do not, people use them."""
    async with mail_world(server, tmp_path) as one:
        first = await one.asked("hello", subject="Plan")

        async def notice(name: str, subject: str, *more: str) -> None:
            fields = [
                "Authentication-Results: mail.test; dmarc=pass header.from=mail.test",
                f"From: {one.alice.address}", f"To: {one.bot}", f"Subject: {subject}", f"Message-ID: <{name}@p.test>",
                f"In-Reply-To: {first['Message-ID']}", *more,
            ]  # fmt: skip
            await one.inject(("\r\n".join(fields) + "\r\n\r\nI am away\r\n").encode())

        await notice("with", "Re: Plan", "Auto-Submitted: auto-replied")
        await notice("exchange", "Automatic reply: Plan", "Auto-Submitted: auto-generated")
        await notice("without", "Out of Office: Re: Plan")
        await notice("person", "Re: Plan")
        await one.answer_to("<without@p.test>")
        await one.answer_to("<person@p.test>")
        mails = await run_sync(one.alice.list)
        rows = await one.built.store.inbox.rows(states=[InboxState.IGNORED], limit=50)
    assert [str(row.error) for row in rows] == ["automatic_mail"] * 2
    assert len(mails) == 3


@pytest.mark.parametrize("deed", ["reads", "moves", "deletes"])
async def test_a_person_is_quicker(server: MailServer, tmp_path: Path, deed: str) -> None:
    """Whoever looks into the mailbox with another program takes no answer away, and nothing goes round in circles."""
    async with mail_world(server, tmp_path, processed_folder="Processed") as one:
        bot = server.peer(one.bot.partition("@")[0])
        asked = await send(one, "!slow 3 apple" if deed != "reads" else "apple")
        if deed != "reads":
            await one.row(
                lambda row: row.message.context.route.get("message_id") == asked, InboxState.RUNNING
            )

        def act() -> None:
            with bot.imap() as imap:
                imap.select("INBOX")
                if deed == "reads":
                    imap.store("1:*", "+FLAGS", "\\Seen")
                elif deed == "moves":
                    imap.create("Elsewhere")
                    imap.copy("1:*", "Elsewhere")
                if deed != "reads":
                    imap.store("1:*", "+FLAGS", "\\Deleted")
                    imap.expunge()

        await run_sync(act)
        await one.answer_to(asked)
        await until_settled(one, asked)
        again = await one.asked("pear", subject="Next")
        status = one.built.supervisor.status("email")
        mails = await run_sync(one.alice.list)
    assert "pear" in text_of(again)
    assert len(mails) == 2
    assert (status.restarts, status.last_error) == (0, "")


async def test_what_an_operator_sees(server: MailServer, tmp_path: Path) -> None:
    """What the server can do, how we log in, who is believed, when it was heard of, what waits and since when."""
    async with mail_world(server, tmp_path) as one:
        await one.asked("hello")
        server.fail_next("refuse-data", times=50, reply="451 4.3.0 later", sender=one.bot)
        try:
            await send(one, "this waits")
            await one.out(lambda row: row.state is OutboxState.PENDING and bool(row.error))
            status = one.built.supervisor.status("email").as_dict()
            stats = await one.built.store.maintenance.stats()
        finally:
            server.clear_faults()
    facts = status["facts"]
    assert status["state"] == "up"
    assert status["heard_at"] is not None
    assert {"IDLE", "MOVE", "UIDPLUS"} <= set(facts["capabilities"])
    assert (facts["login"], facts["sent_copy"], facts["dkim"]) == ("password", "self", "off")
    assert facts["trusted_authserv_ids"] == [server.domain]
    assert stats.outbox["pending"] == 1
    assert stats.oldest_unsent_s is not None
