"""
The black-box checks that an email channel has to pass, each with the tests that hold it to them.

====  =========================================================  =========================================
no.   what must hold                                             where
====  =========================================================  =========================================
E1    one mail, one answer, in its thread, filed and marked      `test_one_mail_one_answer`
E2    a thread and a new subject at once: no cross-talk          `test_two_conversations_at_once`
E3    killed at random over many mails                           `test_killed_at_random_with_files_and_drafts`
E4    the connection drops before or after delivery              `test_a_lost_confirmation_through_the_gateway`
E5    later is later, never is never                             `test_later_is_later`
E6    mail that came while we were away, and none from before    `test_mail_that_came_while_we_were_away_…`
E7    renumbering, lost keywords, redelivery, a shared id        `test_numbers_that_change`
E8    restart, freeze and half-open connections                  `test_a_frozen_server_is_noticed_…`
E9    a mail announced inside a search                           `test_a_mail_announced_inside_a_search_…`
E10   bursts of flags, long responses, a large mailbox           `test_ours_reads_them`
E11   wrong password, unknown authority, wrong name              `test_certificates_that_do_not_fit_…`
E12   tokens: renewed once, refused, never shown                 `test_an_old_token_is_renewed_once_…`
E13   no answer to robots; two of us fall silent                 `test_notices_of_absence`
E14   forged senders: kept back, no model, no answer             `test_forged_senders_are_remembered_…`
E15   Reply-To and Cc                                            `test_where_to_answer`
E16   plus-addresses and secret tags                             `test_addresses_with_a_word`
E17   files, bombs, too much, names in other letters             `test_files_come_with_their_names_…`
E18   the corpus at once, healthy mails between                  `test_each_is_what_it_should_be`
E19   attacks on the processor                                   `test_none_takes_a_second`
E20   drafts wait for a yes                                      `test_a_draft_waits_for_a_word`
E21   many events are one mail                                   `test_alerts_by_mail_are_one_mail_a_day_…`
E22   folders of every name; servers that lack something         `test_folders_of_every_name_…`
E23   a person reads, moves or deletes the mail first            `test_a_person_is_quicker`
E24   what the status says                                       `test_what_an_operator_sees`
E25   a stop in the middle of a turn                             `test_sigterm_finishes_what_is_in_hand_…`
====  =========================================================  =========================================

`CHECKS` has all of them, with their files; a test here sees that each one exists.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from devservers import MailServer, text_of
from gateway.store.states import InboxState, OutboxState
from tests.integration.mail_world import MailWorld, mail_world, open_mail_server

TESTS = Path(__file__).parent.parent
HERE = "integration/test_email_checks.py"
CHANNEL, LINK, WAYS, TRUST, LOOPS, ANSWERING, EVIDENCE, CORPUS, FILES, TOKENS = (
    f"integration/test_email_{name}.py"
    for name in (
        *(
            "channel",
            "link",
            "server_ways",
            "trust",
            "loops",
            "answering",
            "sender_authentication",
            "corpus",
            "files",
        ),
        "tokens",
    )
)
CHECKS: dict[str, dict[str, tuple[str, ...]]] = {
    "E1": {
        HERE: ("test_one_mail_one_answer",),
        CHANNEL: ("test_a_mail_is_accepted_once_and_answered_in_its_thread",),
    },
    "E2": {HERE: ("test_two_conversations_at_once",), ANSWERING: ("test_sessions_of_threads",)},
    "E3": {
        "kill/test_mail_kill.py": (
            "test_killed_at_random_with_files_and_drafts",
            "test_killed_at_each_step_of_a_submission",
        ),
        "kill/test_real_kill.py": ("test_sigkill_at_random_moments_on_real_servers",),
    },
    "E4": {
        ANSWERING: ("test_a_lost_confirmation_through_the_gateway",),
        CHANNEL: ("test_a_lost_confirmation_is_found_out", "test_delivering_without_having_probed_is_caught"),
    },
    "E5": {ANSWERING: ("test_later_is_later", "test_refused_for_good")},
    "E6": {CHANNEL: ("test_mail_that_came_while_we_were_away_is_taken_at_the_next_start",)},
    "E7": {
        WAYS: ("test_numbers_that_change",),
        CHANNEL: ("test_a_renumbered_mailbox_brings_nothing_back",),
        TRUST: ("test_the_same_mail_delivered_again_is_no_new_message",),
    },
    "E8": {
        LINK: (
            "test_a_killed_server_is_noticed_and_the_next_run_goes_on",
            "test_a_frozen_server_is_noticed_within_refresh_and_deadline",
        ),
        WAYS: ("test_a_connection_that_is_only_half_there",),
    },
    "E9": {
        "unit/channels/email/test_mailbox.py": ("test_a_mail_announced_inside_a_search_is_taken_at_once",)
    },
    "E10": {
        "unit/channels/email/test_imap_protocol.py": (
            "test_ours_reads_them",
            "test_ours_is_linear",
        ),
        "unit/channels/email/test_imap_connect.py": ("test_a_burst_of_flags_does_not_wake_an_idle",),
        TRUST: ("test_a_thousand_waiting_mails_are_taken_in_order_and_in_batches",),
    },
    "E11": {
        LINK: (
            "test_certificates_that_do_not_fit_are_refused_on_both_sides",
            "test_a_wrong_password_is_said_in_plain_words",
            "test_a_port_without_tls_is_no_reason_to_go_on_without_it",
        ),
        WAYS: ("test_a_wrong_password_is_tried_once", "test_a_certificate_that_has_expired"),
        "integration/test_gateway_e2e.py": (
            "test_a_wrong_password_for_one_channel_leaves_the_other_working",
        ),
    },
    "E12": {
        TOKENS: (
            "test_an_old_token_is_renewed_once_for_all_who_wait",
            "test_an_access_that_was_taken_back",
            "test_a_provider_that_is_away",
        ),
        "unit/channels/email/test_oauth_tokens.py": ("test_secrets_are_in_no_text",),
    },
    "E13": {
        HERE: ("test_notices_of_absence",),
        TRUST: ("test_robots_and_our_own_mail_are_never_answered",),
        LOOPS: (
            "test_two_of_us_do_not_talk_to_each_other",
            "test_a_robot_that_does_not_say_so",
            "test_a_brake_is_told_to_the_owner",
        ),
        ANSWERING: ("test_a_mail_that_comes_back",),
    },
    "E14": {
        TRUST: ("test_forged_senders_are_remembered_and_not_heard",),
        EVIDENCE: ("test_forged_signatures", "test_a_signature_of_the_senders_domain"),
        "incidents/test_two_readers_of_one_header.py": (),
    },
    "E15": {ANSWERING: ("test_where_to_answer", "test_who_gets_it_besides")},
    "E16": {ANSWERING: ("test_addresses_with_a_word",), EVIDENCE: ("test_a_secret_address",)},
    "E17": {
        FILES: (
            "test_files_come_with_their_names_and_contents",
            "test_beyond_the_caps_files_are_named_with_the_reason",
        ),
        CORPUS: ("test_two_hundred_megabytes",),
        ANSWERING: ("test_a_file_there_and_back",),
    },
    "E18": {
        CORPUS: (
            "test_each_is_what_it_should_be",
            "test_the_healthy_ones_between_them_are_all_answered",
            "test_a_loop_out_of_breath_is_caught",
        )
    },
    "E19": {CORPUS: ("test_none_takes_a_second",)},
    "E20": {ANSWERING: ("test_a_draft_waits_for_a_word",)},
    "E21": {
        "integration/test_heartbeat_turns.py": (
            "test_alerts_by_mail_are_one_mail_a_day_and_urgent_ones_come_at_once",
        ),
        "kill/test_proactive_real_kill.py": ("test_a_digest_by_mail_over_kills",),
    },
    "E22": {
        WAYS: (
            "test_folders_of_every_name_in_every_namespace",
            "test_answered_mails_are_marked_and_filed",
        ),
        LINK: ("test_moving_without_move_uses_uidplus_and_never_a_plain_expunge",),
        "unit/channels/email/test_mailbox.py": (
            "test_without_idle_the_mailbox_is_asked",
            "test_a_keyword_only_where_the_server_keeps_it",
        ),
    },
    "E23": {HERE: ("test_a_person_is_quicker",)},
    "E24": {HERE: ("test_what_an_operator_sees",), LINK: ("test_check_logs_in_on_both_sides",)},
    "E25": {
        "integration/test_gateway_e2e.py": (
            "test_sigterm_finishes_what_is_in_hand_and_the_rest_is_for_the_next_start",
            "test_a_second_sigterm_does_not_wait",
        )
    },
}


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_has_its_tests(check: str) -> None:
    """Nothing stands in the table that is not there, and the table above has every row."""
    assert list(CHECKS) == [f"E{number}" for number in range(1, 26)]
    assert f"\n{check:<6}" in (__doc__ or "")
    for file, names in CHECKS[check].items():
        tree = ast.parse((TESTS / file).read_text())
        known = {
            each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert set(names) <= known, set(names) - known
        assert any(name.startswith("test_") for name in known)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    with open_mail_server(tmp_path_factory.mktemp("mail")) as one:
        yield one


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
        await notice("without", "Out of Office: Re: Plan")
        await notice("person", "Re: Plan")
        await one.answer_to("<without@p.test>")
        await one.answer_to("<person@p.test>")
        mails = await run_sync(one.alice.list)
        rows = await one.built.store.inbox.rows(states=[InboxState.IGNORED], limit=50)
    assert [str(row.error) for row in rows] == ["automatic_mail"]
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
