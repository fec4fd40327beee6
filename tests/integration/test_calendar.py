"""The owner's calendar, tasks and contacts on servers that people run: Radicale and Xandikos."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trustme

from agent_core.provenance import Trust, trust_of
from agent_core.tools.effects import review_of
from devservers.calendars import CalendarServer
from gateway.cli.check.all_checks import _check_calendars
from gateway.cli.check.check_report import CheckReport, FindingLevel
from gateway.settings import Settings
from tests.calendar_world import Calendars, calendars_at, card, event, ids_in, settings_for, started, task
from tests.servers import skipped_without_tools

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=["radicale", "xandikos"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CalendarServer]:
    yield from started(request.param, tmp_path_factory)


@pytest.fixture
async def calendars(server: CalendarServer) -> AsyncIterator[Calendars]:
    for name in server.names("main"):
        server.request("DELETE", f"{server.home}main/{name}")
    for name in server.names("todo"):
        server.request("DELETE", f"{server.home}todo/{name}")
    async with calendars_at(server.url, server.password, turn=secrets.token_hex(4)) as made:
        yield made


DAY = {"from": "2026-12-01", "to": "2026-12-07"}


async def test_an_appointment_is_made_once_and_found(server: CalendarServer, calendars: Calendars) -> None:
    """The same step again, as after a kill before its result was recorded, makes no second one."""
    wanted = {"summary": "Dentist", "start": "2026-12-03 09:30", "minutes": 45, "location": "Main St"}
    made = await calendars.approve("calendar", action="create", **wanted)
    assert not made.is_error, made.content
    again = await calendars.use("calendar", step=calendars.step, action="create", **wanted)
    assert "done before" in again.content
    assert len(server.names()) == 1
    other = await calendars.use("calendar", action="create", **wanted)
    assert not other.is_error
    assert len(server.names()) == 2  # the control: another step is another appointment
    listed = await calendars.use("calendar", action="list", **DAY)
    assert listed.content.count("Thu 2026-12-03 09:30-10:15: Dentist at Main St") == 2
    assert trust_of(listed.origins) is Trust.UNTRUSTED
    assert trust_of(made.origins) is Trust.OWNER
    found = await calendars.use("calendar", action="search", words="dentist main")
    assert "Dentist" in found.content
    assert "Nothing" in (await calendars.use("calendar", action="search", words="optician")).content


async def test_zones_days_and_floating_times(server: CalendarServer, calendars: Calendars) -> None:
    server.put(
        f"{server.home}main/u.ics",
        event("u", "DTSTART:20261202T230000Z", "DTEND:20261203T000000Z", summary="UTC"),
    )
    server.put(
        f"{server.home}main/f.ics", event("f", "DTSTART:20261202T120000", "DURATION:PT1H", summary="Floating")
    )
    server.put(
        f"{server.home}main/d.ics",
        event("d", "DTSTART;VALUE=DATE:20261204", "DTEND;VALUE=DATE:20261206", summary="Trip"),
    )
    server.put(
        f"{server.home}main/n.ics",
        event("n", "DTSTART;TZID=America/New_York:20261202T090000", "DURATION:PT30M", summary="Call"),
    )
    said = (await calendars.use("calendar", action="list", **DAY)).content
    assert "Thu 2026-12-03 00:00-01:00: UTC" in said
    assert "Wed 2026-12-02 12:00-13:00: Floating" in said
    assert "Fri 2026-12-04 to Sat 2026-12-05, all day: Trip" in said
    assert "Wed 2026-12-02 15:00-15:30: Call" in said
    made = await calendars.use(
        "calendar", action="create", summary="Leave", start="2026-12-05", end="2026-12-06"
    )
    assert not made.is_error
    assert (
        "Sat 2026-12-05 to Sun 2026-12-06, all day: Leave"
        in (await calendars.use("calendar", action="list", **DAY)).content
    )


async def test_a_series_and_one_of_its_days(server: CalendarServer, calendars: Calendars) -> None:
    """One occurrence is moved, one is cancelled, the others stay, over the end of summer time."""
    wanted = {
        "summary": "Standup",
        "start": "2026-10-23 09:00",
        "minutes": 15,
        "repeat": "FREQ=DAILY;COUNT=6",
    }
    made = await calendars.approve("calendar", action="create", **wanted)
    assert not made.is_error, made.content
    span = {"from": "2026-10-20", "to": "2026-11-01"}
    [identity] = set(ids_in((await calendars.use("calendar", action="list", **span)).content))
    moved = await calendars.approve(
        "calendar", action="change", id=identity, occurrence="2026-10-26 09:00", start="2026-10-26 14:00"
    )
    assert not moved.is_error, moved.content
    gone = await calendars.approve("calendar", action="cancel", id=identity, occurrence="2026-10-24 09:00")
    assert not gone.is_error, gone.content
    said = (await calendars.use("calendar", action="list", **span)).content
    assert [line.split("] ")[1][:20] for line in said.split("\n") if line.startswith("[")] == [
        "Fri 2026-10-23 09:00",
        "Sun 2026-10-25 09:00",
        "Mon 2026-10-26 14:00",
        "Tue 2026-10-27 09:00",
        "Wed 2026-10-28 09:00",
    ]
    for again in (
        {"action": "cancel", "occurrence": "2026-10-24 09:00"},
        {"action": "change", "occurrence": "2026-10-26 09:00", "start": "2026-10-26 14:00"},
    ):
        assert (await calendars.use("calendar", id=identity, **again)).content == "It is so already."
    all_of_it = await calendars.approve("calendar", action="cancel", id=identity)
    assert not all_of_it.is_error
    assert server.names() == []
    assert (await calendars.use("calendar", action="cancel", id=identity)).content == "It is so already."


async def test_a_change_of_what_somebody_else_changed_is_a_conflict(
    server: CalendarServer, calendars: Calendars
) -> None:
    path = f"{server.home}main/c.ics"
    server.put(path, event("c", "DTSTART:20261202T120000Z", "DTEND:20261202T130000Z", summary="Lunch"))
    wanted = {"action": "change", "id": "main/c.ics", "summary": "Brunch"}
    shown = await calendars.tools["calendar"].review(**wanted)  # type: ignore[attr-defined]
    assert "Lunch" in shown.text
    assert "Brunch" in shown.text
    server.put(path, event("c", "DTSTART:20261202T150000Z", "DTEND:20261202T160000Z", summary="Tea"))
    refused = await calendars.use("calendar", state=shown.state, **wanted)
    assert refused.is_error
    assert "has changed since" in refused.content
    assert "Tea" in server.request("GET", path)[1]
    fine = await calendars.approve("calendar", **wanted)  # the control
    assert not fine.is_error
    assert "Brunch" in server.request("GET", path)[1]
    assert (await calendars.use("calendar", state="of before", **wanted)).content == "It is so already."


async def test_a_yes_is_to_a_moment_whatever_zone_is_set_meanwhile(
    server: CalendarServer, calendars: Calendars
) -> None:
    """09:30 is another moment after the zone was changed; days, titles and what ended are the same."""
    server.put(
        f"{server.home}main/z.ics",
        event("z", "DTSTART:20261202T120000Z", "DTEND:20261202T130000Z", summary="Lunch"),
    )
    server.put(f"{server.home}todo/z.ics", task("z", "Milk"))
    bound = [
        ("calendar", {"action": "create", "summary": "Dentist", "start": "2026-12-03 09:30"}),
        ("calendar", {"action": "change", "id": "main/z.ics", "start": "2026-12-02 09:30"}),
        ("tasks", {"action": "add", "summary": "Taxes", "due": "2026-12-03 09:30"}),
    ]
    free = [
        ("calendar", {"action": "create", "summary": "Trip", "start": "2026-12-05"}),
        ("calendar", {"action": "create", "summary": "Call", "start": "2026-12-03 09:30+01:00"}),
        ("calendar", {"action": "change", "id": "main/z.ics", "summary": "Brunch"}),
        ("tasks", {"action": "done", "id": "todo/z.ics"}),
        ("calendar", {"action": "cancel", "id": "main/z.ics"}),
    ]
    async with calendars_at(server.url, server.password, turn="z", zone="America/New_York") as moved:
        for name, wanted in bound:
            shown = await review_of(calendars.tools[name], wanted)
            assert shown is not None
            late = await moved.use(name, state=shown.state, **wanted)
            assert late.content.startswith("It has changed since it was approved"), wanted
            assert not (await calendars.use(name, state=shown.state, **wanted)).is_error  # the control
        for name, wanted in free:
            shown = await review_of(calendars.tools[name], wanted)
            assert shown is not None
            assert not (await moved.use(name, state=shown.state, **wanted)).is_error, wanted


async def test_what_was_made_before_a_kill_is_found_in_another_zone(server: CalendarServer) -> None:
    """It is not said that nothing was done, and nothing is made a second time."""
    wanted = {"action": "create", "summary": "Dentist", "start": "2026-12-03 09:30"}
    async with calendars_at(server.url, server.password, turn="k") as before:
        shown = await review_of(before.tools["calendar"], wanted)
        assert shown is not None
        assert not (await before.use("calendar", state=shown.state, **wanted)).is_error
    names = server.names()
    async with calendars_at(server.url, server.password, turn="k", zone="America/New_York") as after:
        again = await after.use("calendar", step=before.step, state=shown.state, **wanted)
    assert again.content.startswith("That was done before")
    assert server.names() == names


async def test_the_question_names_what_else_is_at_that_time(
    server: CalendarServer, calendars: Calendars
) -> None:
    """Not the appointment itself, nor what ends when it begins, is free or is a day; the yes is not about it."""
    for name, start, end, *more in (
        ("standup", "090000", "093000"),
        ("lunch", "100000", "110000"),
        ("hold", "090000", "110000", "TRANSP:TRANSPARENT"),
    ):
        times = f"DTSTART:20261203T{start}Z", f"DTEND:20261203T{end}Z"
        server.put(f"{server.home}main/{name}.ics", event(name, *times, *more, summary=name))
    tool = calendars.tools["calendar"]
    wanted = {"action": "create", "summary": "Dentist", "start": "2026-12-03 10:30", "minutes": 45}
    shown = await review_of(tool, wanted)
    assert shown is not None and shown.text.endswith("\nAt the same time: lunch, Thu 2026-12-03 11:00-12:00")
    alone = await review_of(tool, {**wanted, "minutes": 30})
    assert alone is not None and "At the same time" not in alone.text
    moved = await review_of(tool, {"action": "change", "id": "main/lunch.ics", "start": "2026-12-03 10:15"})
    assert moved is not None and moved.text.endswith("At the same time: standup, Thu 2026-12-03 10:00-10:30")
    for other in (
        {"action": "create", "summary": "Trip", "start": "2026-12-03"},
        {"action": "cancel", "id": "main/lunch.ics"},
    ):
        asked = await review_of(tool, other)
        assert asked is not None and "At the same time" not in asked.text
    server.put(
        f"{server.home}main/new.ics",
        event("new", "DTSTART:20261203T093000Z", "DTEND:20261203T100000Z", summary="new"),
    )
    assert not (await calendars.use("calendar", state=shown.state, **wanted)).is_error


async def test_free_time(server: CalendarServer, calendars: Calendars) -> None:
    server.put(f"{server.home}main/a.ics", event("a", "DTSTART:20261202T090000Z", "DTEND:20261202T100000Z"))
    server.put(
        f"{server.home}main/b.ics",
        event("b", "DTSTART:20261202T110000Z", "DTEND:20261202T120000Z", "TRANSP:TRANSPARENT"),
    )
    said = await calendars.use(
        "calendar", action="free", **{"from": "2026-12-02 08:00", "to": "2026-12-02 18:00"}
    )
    assert said.content.split("\n")[1:-1] == [
        "free from Wed 2026-12-02 08:00 to Wed 2026-12-02 10:00",
        "free from Wed 2026-12-02 11:00 to Wed 2026-12-02 18:00",
    ]


async def test_tasks_are_listed_added_and_done(server: CalendarServer, calendars: Calendars) -> None:
    server.put(f"{server.home}todo/t.ics", task("t", "Old one", "STATUS:COMPLETED"))
    added = await calendars.approve("tasks", action="add", summary="Buy milk", due="2026-12-02")
    assert not added.is_error, added.content
    said = (await calendars.use("tasks", action="list")).content
    assert "Buy milk (due 2026-12-02)" in said
    assert "Old one" not in said
    done = await calendars.approve("tasks", action="done", id=ids_in(said)[0])
    assert not done.is_error, done.content
    assert "Nothing" in (await calendars.use("tasks", action="list")).content


async def test_contacts_are_found_by_name(server: CalendarServer, calendars: Calendars) -> None:
    server.put(f"{server.books}people/bob.vcf", card("Bob Müller", "bob@example.org"))
    server.put(f"{server.books}people/eve.vcf", card("Eve", "eve@example.org"))
    said = await calendars.use("contacts", name="müller bob")
    assert "Bob Müller: bob@example.org" in said.content
    assert "eve" not in said.content
    assert trust_of(said.origins) is Trust.UNTRUSTED
    server.put(
        f"{server.books}people/joerg.vcf", card("Jo\u0308rg\\; Sohn", "j@example.org")
    )  # as macOS writes it
    assert "J\u00f6rg; Sohn: j@example.org" in (await calendars.use("contacts", name="j\u00f6rg")).content
    assert "Bob Müller: bob" in (await calendars.use("contacts", name="mu\u0308ller")).content


async def test_check_says_what_it_has_found(server: CalendarServer) -> None:
    for password, level, said in (
        (server.password, FindingLevel.OK, "Personal"),
        ("wrong", FindingLevel.WARNING, "does not accept"),
    ):
        report, given = CheckReport(), settings_for(server.url, password)
        await _check_calendars(report, Settings.model_validate({"tools": {"dav": given}}))
        if server.kind == "radicale" or level is FindingLevel.OK:  # the other one asks for no password
            [found] = report.findings
            assert found.verdict is level
            assert said in found.text
    report = CheckReport()
    await _check_calendars(report, Settings.model_validate({}))
    assert report.findings == []


async def test_the_servers_own_authority(tmp_path: Path) -> None:
    """With the file of its authority it is used; without, or with that of another, nothing is sent."""
    authority, other = trustme.CA(), trustme.CA()
    for name, each in (("ca.pem", authority), ("other.pem", other)):
        each.cert_pem.write_to_path(str(tmp_path / name))
    certificate, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    with skipped_without_tools():
        server = CalendarServer.start("radicale", tmp_path, say=print, certificate=certificate)
    refused = "127.0.0.1 has no valid certificate"
    (tmp_path / "none.pem").write_text("no certificate")
    with server:
        for file, said in (
            (ca, ""),
            (None, refused),
            (tmp_path / "other.pem", refused),
            (tmp_path / "gone.pem", "tls_ca_file cannot be used"),
            (tmp_path / "none.pem", "tls_ca_file cannot be used"),
        ):
            async with calendars_at(server.url, server.password, tls_ca_file=file) as calendars:
                listed = await calendars.use("calendar", action="list", **DAY)
            assert listed.is_error == bool(said), listed.content
            assert said in listed.content


async def test_a_wrong_password_is_named(server: CalendarServer) -> None:
    if server.kind == "xandikos":
        pytest.skip("it asks for none")
    async with calendars_at(server.url, "wrong") as calendars:
        said = await calendars.use("calendar", action="list")
        assert said.is_error
        assert "does not accept the password" in said.content
