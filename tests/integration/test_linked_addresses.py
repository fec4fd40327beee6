"""`!link`: two addresses become one person by proof, and nobody becomes somebody else by a trick."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.app.erasures import run_erasure_requests
from gateway.operations.operation_context import OperationContext
from gateway.routing import links
from gateway.routing.household import HouseholdRole
from gateway.settings import Settings
from gateway.store.personal_rows import rename_person
from gateway.store.sql.person_address import AddressChange
from gateway.system.clock import SystemClock
from gateway.system.home import Home
from tests.integration.init_world import squidbot
from tests.integration.test_household import CID, DAN, EVE, QUIET, ROOM, Uses
from tests.integration.test_own_data import code_for, said_in_mail, stored
from tests.proactive_world import ANN, ANN_MAIL, BOB, Harness, house

pytestmark = pytest.mark.smoke

BOB_MAIL, CID_MAIL, MALLORY = "bob@mail.test", "cid@mail.test", "@mallory:hs.test"
PRIVATE, WRONG, NO_YES = "private conversation", "not a code for this address", "Nothing waits for your yes"


class Later:
    """A clock that the tests put forward."""

    def __init__(self) -> None:
        self.by = timedelta()
        self.real = SystemClock()

    def now(self) -> Any:
        return self.real.now() + self.by

    def monotonic(self) -> float:
        return self.real.monotonic()


def home_of(root: Path, **more: Any) -> Any:
    return house(root, **{**QUIET, "model": Uses(), "groups": (ROOM,), **more})


async def code_of(home: Harness, person: str, other: str) -> str:
    told = await home.asked(person, f"!link {other}")
    found = re.search(r"`!link (\d{4}-\d{4})`", told)
    assert found, told
    return found[1]


async def link(home: Harness, person: str, other: str) -> str:
    """Link a mail address with a Matrix address; return what the mail address was shown."""
    code = await code_of(home, person, other)
    shown = await said_in_mail(home, other, f"!link {code}")
    assert "Done: you are" in await said_in_mail(home, other, "!link yes")
    return shown


def mains(home: Harness) -> dict[str, str]:
    house = home.built.conversations.access.household
    return {one: house.main_address(one) for one in (ANN, ANN_MAIL, BOB, BOB_MAIL, CID, CID_MAIL, MALLORY)}


def nobody_linked(home: Harness) -> bool:
    return all(address == main for address, main in mains(home).items())


async def test_both_are_one_person_afterwards(tmp_path: Path) -> None:
    """One memory, one export, the role of the first; the control: before, they were two. A restart keeps it."""
    people = {"bob": {"addresses": [BOB], "role": "guest", "language": "de"}}
    async with home_of(tmp_path, more={"people": people}) as home:
        chat, mail = home.chat, home.mail
        await home.asked(ANN, "hello")
        await home.asked(BOB, "remember bob likes plums")
        await said_in_mail(home, BOB_MAIL, "remember the mail likes pears")
        assert "plums" not in await said_in_mail(home, BOB_MAIL, "!memory")
        before = len(home.chat.seen(f"dm-{BOB}"))
        code = re.search(r"`!link (\d{4}-\d{4})`", await home.asked(BOB, f"!link {BOB_MAIL}"))
        assert code
        shown = await said_in_mail(home, BOB_MAIL, f"!link {code[1]}")
        assert BOB in shown and "!link yes" in shown
        assert nobody_linked(home)
        assert BOB in await said_in_mail(home, BOB_MAIL, "!link yes")
        told = await home.chat.answers(before + 2, conversation=f"dm-{BOB}")
        assert BOB_MAIL in told[-1].text and "Gedächtnis" in told[-1].text
        await home.until(lambda: any(BOB_MAIL in one.text and BOB in one.text for one in home.alerts()))
        known = await said_in_mail(home, BOB_MAIL, "!memory")
        assert "plums" in known and "pears" not in known
        rules = home.built.conversations.access.household.rules(BOB_MAIL)
        assert (rules.role, rules.addresses) == (HouseholdRole.GUEST, (BOB, BOB_MAIL))
        assert code[1] not in json.dumps(await home.built.store.state.read_all(links.TOPIC))
    async with home_of(tmp_path, chat=chat, mail=mail, more={"people": people}) as home:
        assert "plums" in await said_in_mail(home, BOB_MAIL, "!memory")
        assert BOB_MAIL in await home.asked(BOB, "!link")
        await home.asked(BOB, f"!unlink {BOB_MAIL}")
        known = await said_in_mail(home, BOB_MAIL, "!memory")
        assert "pears" in known and "plums" not in known
        assert nobody_linked(home)


async def test_the_code_is_for_the_address_that_was_named_alone(tmp_path: Path) -> None:
    """Not for that of somebody else, not for the one that got it, not a second time; and a wrong one."""
    async with home_of(tmp_path) as home:
        code = await code_of(home, BOB, BOB_MAIL)
        for person in (BOB, CID, MALLORY):
            assert WRONG in await home.asked(person, f"!link {code}")
            assert NO_YES in await home.asked(person, "!link yes")
        wrong = "0000-0000" if code != "0000-0000" else "0000-0001"
        assert WRONG in await said_in_mail(home, BOB_MAIL, f"!link {wrong}")
        assert NO_YES in await said_in_mail(home, BOB_MAIL, "!link yes")
        assert nobody_linked(home)
        assert "!link yes" in await said_in_mail(home, BOB_MAIL, f"!link {code}")
        await said_in_mail(home, BOB_MAIL, "!link yes")
        assert mains(home)[BOB_MAIL] == BOB
        await home.asked(BOB, f"!unlink {BOB_MAIL}")
        assert WRONG in await said_in_mail(home, BOB_MAIL, f"!link {code}")
        assert NO_YES in await said_in_mail(home, BOB_MAIL, "!link yes")
        assert nobody_linked(home)


async def test_a_code_is_not_found_by_trying(tmp_path: Path) -> None:
    async with home_of(tmp_path) as home:
        code = await code_of(home, BOB, BOB_MAIL)
        for number in range(links.MAX_TRIES):
            wrong = f"{number:04}-0000"
            assert WRONG in await said_in_mail(home, BOB_MAIL, f"!link {wrong}") or wrong == code
        assert WRONG in await said_in_mail(home, BOB_MAIL, f"!link {code}")
        code = await code_of(home, BOB, BOB_MAIL)  # the control: a new one counts
        assert "!link yes" in await said_in_mail(home, BOB_MAIL, f"!link {code}")


async def test_a_code_ends(tmp_path: Path) -> None:
    """After a quarter of an hour, before it is sent and before the yes; the control: a second before, it counts."""
    clock = Later()
    async with home_of(tmp_path, clock=clock) as home:
        code = await code_of(home, BOB, BOB_MAIL)
        clock.by += timedelta(seconds=links.CODE_S - 60)
        assert "!link yes" in await said_in_mail(home, BOB_MAIL, f"!link {code}")
        clock.by += timedelta(seconds=61)
        assert WRONG in await said_in_mail(home, BOB_MAIL, f"!link {code}")
        assert NO_YES in await said_in_mail(home, BOB_MAIL, "!link yes")
        assert nobody_linked(home)


async def test_only_in_private_and_with_proof(tmp_path: Path) -> None:
    """In a room neither is a code given nor taken; a message that nothing proves is a stranger's."""
    async with home_of(tmp_path) as home:
        assert PRIVATE in await home.asked(BOB, f"!link {CID}", conversation=ROOM)
        code = await code_of(home, BOB, CID)
        assert PRIVATE in await home.asked(CID, f"!link {code}", conversation=ROOM)
        assert PRIVATE in await home.asked(CID, "!unlink", conversation=ROOM)
        assert NO_YES in await home.asked(CID, "!link yes")
        home.chat.say(CID, f"!link {code}", verified=False)
        home.chat.say(CID, "!link yes", verified=False)
        await home.asked(EVE, "hello")
        assert nobody_linked(home)
        assert "!link yes" in await home.asked(CID, f"!link {code}")
        home.chat.say(CID, "!link yes", verified=False)
        assert PRIVATE in await home.asked(CID, "!link yes", conversation=ROOM)
        await home.asked(EVE, "hello")
        assert nobody_linked(home)


@pytest.mark.parametrize(
    "context", [{"proof": 1}, {"reply_to": "mallory@mail.test"}], ids=["weak", "elsewhere"]
)
async def test_a_mail_needs_the_best_proof(tmp_path: Path, monkeypatch: Any, context: dict[str, Any]) -> None:
    """One that only knows a secret address, or wants its answer elsewhere; the control: without that, it counts."""
    async with home_of(tmp_path) as home:
        code = await code_of(home, BOB, BOB_MAIL)
        commands = home.built.handler.kinds["message"].commands.handlers
        sure = commands.to

        async def weak(turn: Any, command: Any, session: Any) -> Any:
            if turn.channel == "email":
                message = turn.head.message
                message = message.with_context(replace(message.context, **context))
                turn = replace(turn, rows=(replace(turn.head, message=message),))
            return await sure(turn, command, session)

        with monkeypatch.context() as patched:
            patched.setattr(commands, "to", weak)
            assert PRIVATE in await said_in_mail(home, BOB_MAIL, f"!link {code}")
            assert PRIVATE in await said_in_mail(home, BOB_MAIL, f"!link {CID}")
        assert "!link yes" in await said_in_mail(home, BOB_MAIL, f"!link {code}")


async def test_strangers_cannot_use_it(tmp_path: Path) -> None:
    """Neither begin nor end one: linking lets nobody in."""
    allow = {"matrix": (BOB,), "email": ()}
    async with home_of(tmp_path, allow=allow) as home:
        code = await code_of(home, BOB, BOB_MAIL)
        home.mail.say(BOB_MAIL, f"!link {code}")
        home.mail.say(BOB_MAIL, "!link yes")
        home.chat.say(MALLORY, f"!link {BOB}")
        await home.asked(BOB, "hello")
        assert home.mail.seen() == [] and home.chat.seen(f"dm-{MALLORY}") == []
        assert nobody_linked(home)


async def test_nobody_becomes_the_owner(tmp_path: Path) -> None:
    """Whatever the owner was made to send, and whoever sends the owner's code: there is none."""
    async with home_of(tmp_path) as home:
        await home.asked(ANN, "remember the code is blue7x")
        for mine in (ANN, ANN_MAIL):
            code = await code_of(home, MALLORY, mine)
            for said in (f"!link {code}", "!link yes", f"!link {MALLORY}"):
                told = await home.asked(ANN, said)
                assert "owner.aliases" in told and ("Add" in told and MALLORY in told) == (MALLORY in said)
                assert "owner.aliases" in await said_in_mail(home, ANN_MAIL, said)
        assert nobody_linked(home)
        assert "blue7x" not in await home.asked(MALLORY, "!memory")
        text = json.dumps({"linked": {MALLORY: {"main": ANN, "at": "", "place": ""}}, "requests": []})
        await home.built.store.state.write(links.TOPIC, text)
        await links.load(home.built.store.state, home.built.conversations.access)
        assert nobody_linked(home)  # not even if the stored text says so
        assert "blue7x" not in await home.asked(MALLORY, "!memory")


async def test_who_was_made_to_send_a_code_is_told_whose_it_is(tmp_path: Path) -> None:
    """And nothing happens without their yes; a no ends it, also for the code."""
    async with home_of(tmp_path) as home:
        await home.asked(BOB, "remember bob likes plums")
        code = await code_of(home, MALLORY, BOB)
        shown = await home.asked(BOB, f"!link {code}")
        assert MALLORY in shown and "read and erase" in shown
        assert nobody_linked(home)
        assert "plums" not in await home.asked(MALLORY, "!memory")
        for said in ("!link yes", f"!link {code}"):
            await home.asked(MALLORY, said)
        assert nobody_linked(home)
        await home.asked(BOB, "!link no")
        assert NO_YES in await home.asked(BOB, "!link yes")
        assert WRONG in await home.asked(BOB, f"!link {code}")
        assert nobody_linked(home)


async def test_two_at_once(tmp_path: Path) -> None:
    """Of two people who name one address, the one whose code was sent last gets it, and the other nothing."""
    async with home_of(tmp_path) as home:
        first, second = await code_of(home, BOB, BOB_MAIL), await code_of(home, CID, BOB_MAIL)
        await said_in_mail(home, BOB_MAIL, f"!link {first}")
        assert CID in await said_in_mail(home, BOB_MAIL, f"!link {second}")
        before = len(home.mail.seen(f"dm-{BOB_MAIL}"))
        for __ in range(4):
            home.mail.say(BOB_MAIL, "!link yes")
        told = await home.mail.answers(before + 4, conversation=f"dm-{BOB_MAIL}")
        assert all(CID in one.text for one in told[before:])
        assert mains(home)[BOB_MAIL] == CID
        assert "already" in await said_in_mail(home, BOB_MAIL, f"!link {first}")
        await home.until(lambda: [one for one in home.alerts() if "`!unlink" in one.text])
        notices = [one for one in home.chat.seen(f"dm-{CID}") if "is linked with you now" in one.text]
        assert len(notices) == 1


async def test_who_has_an_entry_or_a_link_is_nobody_elses(tmp_path: Path) -> None:
    """A second owner's address, and a guest's; the settings go before a link that was made earlier."""
    people = {"bob": {"addresses": [BOB], "role": "owner"}, "cid": {"addresses": [CID], "role": "guest"}}
    async with home_of(tmp_path, more={"people": people}) as home:
        chat, mail = home.chat, home.mail
        for person in (BOB, CID):
            code = await code_of(home, MALLORY, person)
            assert "somebody's already" in await home.asked(person, f"!link {code}")
            assert NO_YES in await home.asked(person, "!link yes")
        await link(home, CID, CID_MAIL)
        house = home.built.conversations.access.household
        assert house.rules(CID_MAIL).role is HouseholdRole.GUEST
        code = await code_of(home, MALLORY, CID_MAIL)
        assert "somebody's already" in await said_in_mail(home, CID_MAIL, f"!link {code}")
        assert "is you already" in await home.asked(CID, f"!link {CID_MAIL}")
    people["dan"] = {"addresses": [DAN, CID_MAIL]}
    async with home_of(tmp_path, chat=chat, mail=mail, more={"people": people}) as home:
        house = home.built.conversations.access.household
        assert house.main_address(CID_MAIL) == DAN
        assert house.same_person([CID]) == {CID}
        assert "the settings" in await home.asked(ANN, f"!unlink {CID_MAIL}")


async def test_a_flood_takes_little(tmp_path: Path) -> None:
    """The stored text stays small, and who waited before keeps the code; the control: below the bound it counts."""
    async with home_of(tmp_path) as home:
        code = await code_of(home, BOB, BOB_MAIL)
        for number in range(links.MAX_REQUESTS + 5):
            home.chat.say(MALLORY, f"!link x{number}@mail.test")
        told = await home.chat.answers(links.MAX_REQUESTS + 5, conversation=f"dm-{MALLORY}")
        assert "too many links" in told[-1].text
        text = await home.built.store.state.read(links.TOPIC)
        assert text is not None and len(json.loads(text)["requests"]) == links.MAX_REQUESTS
        assert "!link yes" in await said_in_mail(home, BOB_MAIL, f"!link {code}")
        await said_in_mail(home, BOB_MAIL, "!link yes")
        assert mains(home)[BOB_MAIL] == BOB


async def test_the_owner_sees_and_ends_links(tmp_path: Path) -> None:
    """In the chat and at the machine; nobody else ends those of others."""
    allow = {"matrix": (BOB, CID), "email": (BOB_MAIL,)}
    async with home_of(tmp_path, allow=allow) as home:
        for end in (f"!unlink {BOB_MAIL}", "machine", ""):
            await link(home, BOB, BOB_MAIL)
            context = OperationContext(home.built.store, None, access=home.built.conversations.access)  # type: ignore[arg-type]
            rows = (await context.call("people_list", {}))["rows"]
            assert {row["address"]: row["linked"] for row in rows}[BOB_MAIL] == BOB
            assert "not linked with you" in await home.asked(CID, f"!unlink {BOB_MAIL}")
            assert mains(home)[BOB_MAIL] == BOB
            assert "first address" in await home.asked(BOB, "!unlink")
            if end == "machine":
                assert (await context.call("person_unlink", {"address": BOB_MAIL}))["unlinked"]
            elif end:
                assert "no other address now" in await home.asked(ANN, end)
            else:
                assert "no other address now" in await said_in_mail(home, BOB_MAIL, "!unlink")
            assert nobody_linked(home)


async def test_export_erasure_and_a_new_address(tmp_path: Path) -> None:
    """All of both are exported and erased, and the link with them; it follows a new address."""
    root = tmp_path / "home"
    async with home_of(root) as home:
        await home.asked(BOB, "bobword is mine")
        await said_in_mail(home, BOB_MAIL, "mailword is mine")
        await home.asked(CID, "cidword is mine")
        await link(home, BOB, BOB_MAIL)
        await link(home, CID, CID_MAIL)
        await home.asked(BOB, f"!forget me {await code_for(home, BOB)}")
    done = squidbot("forget", BOB_MAIL, "--dry-run", "--json", "--home", str(root))
    assert json.loads(done.stdout)["conversations"] == 2, (done.stdout, done.stderr)
    path = root / "state/erasure-requests.json"
    path.write_text(
        path.read_text().replace(json.loads(path.read_text())[0]["due"], "2020-01-01T04:00:00+00:00")
    )
    await anyio.to_thread.run_sync(run_erasure_requests, Settings(), Home(root))
    assert "bobword" not in stored(root) and "mailword" not in stored(root) and "cidword" in stored(root)
    assert linked_in(root) == {CID_MAIL: CID}
    rename_person(root / "gateway.db", AddressChange(CID, "@cid:new.test"))
    assert linked_in(root) == {CID_MAIL: "@cid:new.test"}


def linked_in(root: Path) -> dict[str, str]:
    with closing(sqlite3.connect(root / "gateway.db")) as db:
        [(text,)] = db.execute("SELECT value FROM state WHERE topic = ?", (links.TOPIC,)).fetchall()
    return links.read_book(text).mains()
