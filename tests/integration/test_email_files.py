"""Files by mail, both ways, on a real mail server: kept, named, never in the way of the mail that brings them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from agent_core.messages import Attachment
from channels.attachments import AttachmentStore, AttachmentsUnavailable
from channels.email.receive.mail_attachments import QUARANTINED_BYTES
from channels.email.smtp.submission import SubmitTiming
from devservers import MailServer, text_of
from tests.integration.mail_bot import Bot, Marks, answer_to, make_bot, raw_mail, server_of_bots

mail_server = server_of_bots()


@pytest.fixture
def bot(mail_server: MailServer, tmp_path: Path) -> Bot:
    return make_bot(mail_server, tmp_path)


async def contents(bot: Bot, *attachments: Attachment) -> list[bytes]:
    return [await bot.files.read(each, max_bytes=10_000_000) for each in attachments]


async def test_files_come_with_their_names_and_contents(bot: Bot) -> None:
    """Names in any script, bytes as they were, a mail without a text; the same file twice is kept once."""
    blob = os.urandom(300_000)
    async with bot.running():
        await bot.send(
            "Two files",
            "here",
            attachments=[
                ("Übersicht – 表.pdf", "application/pdf", b"%PDF-1.7 x"),
                ("data.bin", "application/x-y", blob),
            ],
        )
        await bot.send("Nothing to say", "", attachments=[("again.bin", "application/x-y", blob)])
        first, second = await bot.inbox.until_accepted(2)

    assert [(each.name, each.media_type) for each in first.attachments] == [
        ("Übersicht – 表.pdf", "application/pdf"),
        ("data.bin", "application/x-y"),
    ]
    assert await contents(bot, *first.attachments) == [b"%PDF-1.7 x", blob]
    assert (first.text, second.text) == ("here", "Nothing to say")
    assert second.attachments[0].path == first.attachments[1].path
    assert len(await bot.files.list_files()) == 2


async def test_beyond_the_caps_files_are_named_with_the_reason(
    mail_server: MailServer, tmp_path: Path
) -> None:
    """Too many, too large together: the mail is a message all the same, and says what is missing."""
    bot = make_bot(mail_server, tmp_path, max_files=2, max_files_mb=0.01)
    async with bot.running():
        await bot.send("Many", "see", attachments=[(f"{n}.txt", "text/csv", b"%d" % n) for n in range(4)])
        await bot.send(
            "Large", "see", attachments=[("a.bin", "a/b", b"x" * 9_000), ("b.bin", "a/b", b"y" * 2_000)]
        )
        many, large = await bot.inbox.until_accepted(2)

    assert [each.name for each in many.attachments] == ["0.txt", "1.txt"]
    assert "see\n\n[Attached, but not kept: 2.txt (text/csv" in many.text
    assert "a mail may have at most 2 files" in many.text
    assert [each.name for each in large.attachments] == ["a.bin"]
    assert "b.bin (a/b, " in large.text
    assert "larger than" in large.text


async def test_of_strangers_and_forgers_little_or_nothing_is_kept(bot: Bot) -> None:
    """Whoever may not write leaves no file; an unproven mail only small ones."""
    part = "Content-Type: multipart/mixed; boundary=b\r\n"

    def body(size: int) -> str:
        return f"--b\r\n\r\nhi\r\n--b\r\nContent-Type: a/b; name=f{size}.bin\r\n\r\n{'x' * size}\r\n--b--"

    channel = bot.channel()
    channel._keeper._knows = lambda address: address == bot.person.address
    async with bot.running(channel):
        await bot.inject(
            raw_mail(bot, message_id="<s1@x>", sender="eve@evil.test", evidence="", text=body(10), more=part)
        )
        await bot.inject(raw_mail(bot, message_id="<s2@x>", evidence="", text=body(20), more=part))
        await bot.inject(
            raw_mail(bot, message_id="<s3@x>", evidence="", text=body(QUARANTINED_BYTES + 1), more=part)
        )
        await bot.inject(raw_mail(bot, message_id="<s4@x>", text=body(30), more=part))
        stranger, small, large, proven = await bot.inbox.until_accepted(4)

    assert stranger.attachments == large.attachments == ()
    assert [each.name for each in (*small.attachments, *proven.attachments)] == ["f20.bin", "f30.bin"]
    assert len(await bot.files.list_files()) == 2


async def test_a_full_disk_accepts_nothing_and_loses_nothing(bot: Bot) -> None:
    """While files cannot be written the mail stays where it is; when they can, it comes, once, with its file."""

    class Full(AttachmentStore):
        full = True

        async def save(self, *args, **kwargs):
            if self.full:
                raise AttachmentsUnavailable("no room", errno=errno.ENOSPC)
            return await super().save(*args, **kwargs)

    files = Full(bot.state_dir.parent / "home")
    channel = bot.channel()
    channel._keeper._store = files
    async with bot.running():
        pass
    await bot.send("With a file", "look", attachments=[("a.txt", "text/plain", b"a")])
    with anyio.fail_after(60), pytest.raises(AttachmentsUnavailable):
        await channel.run(bot.inbox)
    assert bot.inbox.accepted == []
    assert "\\Seen" not in (await run_sync(bot.peer().flags))[0]
    files.full = False
    async with bot.running(channel):
        pass
    assert [each.name for each in bot.inbox.accepted[0].attachments] == ["a.txt"]
    assert len(bot.inbox.accepted) == 1


async def test_what_is_broken_never_loses_the_mail(bot: Bot) -> None:
    """Broken encodings give what can be had; the words beside them arrive in any case."""
    bodies = {
        "base64": "AAEC*Aw=\r\nB#A=U",
        "quoted-printable": "a=ZZb=3",
        "x-uuencode": "begin 644 x\r\n#0V%T\r\n!!broken!!\r\n`\r\nend",
        "8bit": "plain",
        "no-such-thing": "as it is",
    }
    async with bot.running():
        for number, (encoding, body) in enumerate(bodies.items()):
            more = "Content-Type: multipart/mixed; boundary=b\r\n"
            text = (
                f"--b\r\n\r\nwords {number}\r\n--b\r\nContent-Type: application/x-z; name=z{number}\r\n"
                f"Content-Transfer-Encoding: {encoding}\r\n\r\n{body}\r\n--b--"
            )
            await bot.inject(raw_mail(bot, message_id=f"<broken{number}@x>", text=text, more=more))
        messages = await bot.inbox.until_accepted(len(bodies))

    assert [message.text for message in messages] == [f"words {number}" for number in range(len(bodies))]
    found = await contents(bot, *(message.attachments[0] for message in messages))
    assert found[0].startswith(b"\x00\x01\x02\x03")
    assert found[2:] == [b"Cat", b"plain", b"as it is"]


async def test_a_file_goes_out_as_it_is(bot: Bot) -> None:
    """Name, type and bytes arrive; the texts are there in both versions."""
    blob = os.urandom(100_000)
    names = ["Grüße – 表.bin", 'quo"ted.bin', "plain.bin"]
    files = tuple([await bot.files.save(name, "application/x-y", blob + name.encode()) for name in names])
    mail = await bot.files.save("old.eml", "message/rfc822", b"Subject: x\r\n\r\nfrom. \r\n.\r\n")
    async with bot.running() as channel:
        await bot.send()
        answer = answer_to((await bot.inbox.until_accepted(1))[0]).model_copy(
            update={"attachments": (*files, mail)}
        )
        await channel.deliver(answer, uncertain=Marks())
        got = await run_sync(lambda: bot.person.wait_for(lambda each: True))

    parts = list(got.iter_attachments())
    assert [part.get_filename() for part in parts] == [*(each.name for each in files), "old.eml"]
    assert [part.get_payload(decode=True) for part in parts[:3]] == [blob + name.encode() for name in names]
    assert parts[3].get_payload(decode=True) == b"Subject: x\r\n\r\nfrom. \r\n.\r\n"
    assert {part.get_content_type() for part in parts} == {"application/x-y", "application/octet-stream"}
    assert text_of(got).strip() == "A fine answer"
    assert "<strong>fine</strong>" in got.get_body(("html",)).get_content()


async def test_too_large_a_file_is_told_in_words(mail_server: MailServer, tmp_path: Path) -> None:
    """Larger than the setting: left out and named. Larger than the server takes: the same, once, by its answer."""
    bot = make_bot(mail_server, tmp_path, max_reply_mb=0.1)
    large = await bot.files.save("large.bin", "application/x-y", b"x" * 100_001)
    small = await bot.files.save("small.bin", "application/x-y", b"y" * 1_000)
    async with bot.running() as channel:
        await bot.send()
        question = (await bot.inbox.until_accepted(1))[0]
        one = answer_to(question, key="1").model_copy(update={"attachments": (large, small)})
        await channel.deliver(one, uncertain=Marks())
        bot.server.fail_next("refuse-data", reply="552 5.3.4 too big", sender=bot.address)
        two = answer_to(question, key="2").model_copy(update={"attachments": (small,)})
        await channel.deliver(two, uncertain=Marks())
        mails = await bot.answers()

    assert [[part.get_filename() for part in mail.iter_attachments()] for mail in mails] == [
        ["small.bin"],
        [],
    ]
    assert "(large.bin is too large to be sent by mail (0.1 MB).)" in text_of(mails[0])
    assert "(small.bin is too large to be sent by mail (0.001 MB).)" in text_of(mails[1])
    assert len(mails) == 2


async def test_a_large_answer_holds_nobody_up(bot: Bot) -> None:
    """16 MB go out while everything else goes on; sent in one piece, the loop stands still (the control)."""
    blob = os.urandom(12_000_000)
    file = await bot.files.save("big.bin", "application/x-y", blob)

    async def longest_stall(key: str, large_bytes: int) -> float:
        worst = 0.0
        ours = bot.channel(submit_timing=SubmitTiming(large_bytes=large_bytes))
        async with bot.running(ours) as channel, anyio.create_task_group() as tasks:

            async def watch() -> None:
                nonlocal worst
                while True:
                    before = anyio.current_time()
                    await anyio.sleep(0.001)
                    worst = max(worst, anyio.current_time() - before)

            question = bot.inbox.accepted[0] if bot.inbox.accepted else None
            if question is None:
                await bot.send()
                question = (await bot.inbox.until_accepted(1))[0]
            answer = answer_to(question, key=key).model_copy(update={"attachments": (file,)})
            tasks.start_soon(watch)
            await channel.deliver(answer, uncertain=Marks())
            tasks.cancel_scope.cancel()
        return worst

    ours = await longest_stall("1", 256_000)
    naive = await longest_stall("2", 1 << 40)
    mails = await bot.answers()
    assert [next(mail.iter_attachments()).get_payload(decode=True) == blob for mail in mails] == [True, True]
    assert ours < naive, f"{ours:.3f} s against {naive:.3f} s"
