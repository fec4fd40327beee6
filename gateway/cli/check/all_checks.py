"""
Tests everything that the daemon needs: the configuration, the home folder and its machine, each server by
itself, the logins, the encryption, and an answer of each model pool. Each finding says what to do. With
``--data`` it checks the stored data for damage instead, and repairs what it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from agent_core.errors import AgentError, ToolError
from agent_core.skills.skill_loader import SkillsLoader
from agent_core.storage.layout import Layout
from channels.base import AccountFinding
from channels.plugin import API_VERSION
from gateway.cli.check import machine_checks
from gateway.cli.check.attachment_checks import storage_answers
from gateway.cli.check.check_report import CheckReport, Finding, FindingLevel, IntegrityFinding
from gateway.cli.check.login_checks import (
    ask_failing,
    check_channel,
    check_parts,
    is_up,
    report_findings,
    report_running,
)
from gateway.cli.check.network_checks import ProbeResult, clock_finding, configured_servers, probe_server
from gateway.cli.check.stored_data_checks import Repaired, examine_state, repair_state
from gateway.errors import AlreadyRunning, ChatOpen, ConfigInvalid, GatewayError, StateUnusable
from gateway.operations.home_files import open_skills
from gateway.operations.operation_registry import operations_in
from gateway.operations.privacy.erasure_journal import check_no_move_pending
from gateway.plugins import installed_plugins
from gateway.settings import Settings, load_settings
from gateway.settings.last_good import changes
from gateway.settings.problems import parse_listen
from gateway.store.place import place_of_queue
from gateway.store.rollback_guard import warning_of
from gateway.store.stores import StoreUnavailable
from gateway.system.clock import SystemClock
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home, holder_of, refuse_chat
from gateway.system.restore_marker import RestoreMarker, check_no_restore_pending

__all__ = ["CheckReport", "Finding", "FindingLevel", "check", "check_channel", "check_data"]

_MAX_TROUBLES = 50
_SEARCH_LIMIT_S = 20.0
_STORAGE_LIMIT_S = 60.0


def check(home: Home, config: Path) -> CheckReport:
    """Check everything as far as possible: what depends on something broken is left out."""
    report = CheckReport()
    if _is_unfinished(report, home):
        return report
    settings = _configuration(report, home, config)
    if settings is None:
        return report
    try:
        _check_home(report, home)
    except StateUnusable as error:
        report.fail("home", error)
        return report
    _report_plugins(report, settings)
    _report_skills(report, open_skills(settings, home))
    anyio.run(_check_live, report, settings, home)
    return report


def check_data(home: Home, config: Path, *, repair: bool = False) -> CheckReport:
    """
    Check all stored data; with ``repair``, repair what can be repaired.

    Nothing outside of the home is asked but the database, and without damage nothing is changed.
    """
    report = CheckReport()
    if _is_unfinished(report, home):
        return report
    settings = _configuration(report, home, config)
    if settings is None:
        return report
    if not home.root.is_dir():
        report.fail("home", f"there is no {home.root}", "is it the right home (--home, SQUIDBOT_HOME)?")
        return report
    layout = Layout(home.root, home.path(settings.agents.workspace))
    clock, storage = SystemClock(), settings.attachments.storage(home.root)
    place = place_of_queue(home.database, settings.store_url)
    server = None if isinstance(place, Path) else place
    if server is not None:
        told = "the queue is on a PostgreSQL server, which checks its own files (pg_amcheck)"
        report.skip("database", told)
    days = settings.attachments.keep_days
    examine = partial(
        examine_state, home, layout, clock=clock, keep_days=days, storage=storage, server=server
    )
    try:
        _examine_and_repair(report, home, examine, repair=repair)
    except AlreadyRunning as error:
        report.fail("daemon", f"{error}; nothing was repaired", "stop it, and try again")
        return report
    except (StoreUnavailable, ConfigInvalid, StateUnusable, OSError) as error:
        of_server = isinstance(error, (StoreUnavailable, ConfigInvalid))
        where = (
            "gateway.store and the server" if of_server else "the disk and the permissions of the home folder"
        )
        report.fail("state", str(error), f"check {where}")
    return report


def _examine_and_repair(
    report: CheckReport, home: Home, examine: Callable[..., Iterator[IntegrityFinding]], *, repair: bool
) -> None:
    """Report what ``examine`` finds; nothing is repaired while a daemon runs."""
    running = holder_of(home)
    found = list(examine(in_use=running is not None))
    repaired = Repaired()
    if repair and found and running is not None:
        who = f"process {running}" if running else "another process"
        report.fail(
            "daemon", f"squidbot runs on this home ({who}), so nothing was repaired", "stop it, and try again"
        )
    elif repair and found:
        with hold_home(home, purpose="command"):
            found = list(examine())
            repaired = repair_state(home, found, now=datetime.now(UTC))
    _report_state(report, found, repaired, in_use=running is not None)


def _report_state(
    report: CheckReport, found: list[IntegrityFinding], repaired: Repaired, *, in_use: bool
) -> None:
    done = {id(one) for one in repaired.done}
    reasons = {id(one): why for one, why in repaired.left}
    for one in found[:_MAX_TROUBLES]:
        if id(one) in done:
            report.ok(one.part, f"repaired: {one.text}")
        else:
            note = report.fail if one.serious else report.warn
            note(one.part, one.text, reasons.get(id(one)) or one.remedy)
    if len(found) > _MAX_TROUBLES:
        report.fail("state", f"and {len(found) - _MAX_TROUBLES} more findings")
    if repaired.kept is not None:
        report.ok("state", f"{repaired.kept} has the files as they were, and what was taken out")
    healthy = {"histories", "records", "memory", "database", "search index", "attachments"} - {
        *(one.part for one in found),
        *(one.part for one in report.findings),
    }
    for part in sorted(healthy):
        if in_use and part == "search index":
            report.skip(part, "the daemon is working on it")
        else:
            report.ok(part, "whole")


def _is_unfinished(report: CheckReport, home: Home) -> bool:
    """Report an interrupted restore and return True: no other check is meaningful then."""
    try:
        check_no_restore_pending(home.root)
    except RestoreMarker as error:
        report.fail("home", error)
        return True
    return False


def _configuration(report: CheckReport, home: Home, config: Path) -> Settings | None:
    try:
        settings = load_settings(config)
    except ConfigInvalid as error:
        changed = changes(config, home.last_good)
        said = ["changed since squidbot last started with it:", *(f"  {line}" for line in changed)]
        report.fail(
            "configuration",
            "\n".join([str(error), *(said if changed else [])]),
            _way_out(config, changed=bool(changed)),
        )
        report.exit_code = error.exit_code
        return None
    report.ok("configuration", f"{config}")
    for warning in settings.warnings:
        report.warn("configuration", warning)
    return settings


def _report_plugins(report: CheckReport, settings: Settings) -> None:
    """Say which packages of others are part of this squidbot, and which could be."""
    for one in installed_plugins():
        part = f"plugin {one.name}"
        if one.name in settings.plugins.enabled:
            what = f"{one}, {one.group} version {API_VERSION}; it runs with all rights of squidbot"
            report.ok(part, what)
        else:
            report.skip(part, f"{one} is installed and not in plugins.enabled")


def _report_skills(report: CheckReport, loader: SkillsLoader) -> None:
    """Name the skills that the assistant does not get, or gets without what they need."""
    listed = [one for one in loader.list_skills() if one.missing and one.description]
    lacking = [f"{one.name} lacks {', '.join(one.missing)}" for one in listed]
    found = sorted(loader.added.folder.glob("*.md")) if loader.added is not None else []
    astray = [f"{path}: should be a folder with SKILL.md" for path in found]
    for told in [*loader.problems, *lacking, *astray]:
        report.warn("skill", told, "docs/skills.md shows how a skill is written")


def _way_out(config: Path, *, changed: bool) -> str:
    if not config.exists():
        return "run squidbot init, or name the file with --config"
    if changed:
        return (
            "squidbot config restore brings back the last working configuration, and keeps the present file"
        )
    return "correct the lines above; squidbot config example shows every setting"


def _check_home(report: CheckReport, home: Home) -> None:
    # A daemon at work there has proved it; and its user may be another one, such as systemd's DynamicUser.
    if holder_of(home) is None:
        open_home(home.root, as_guest=True)
    check_no_move_pending(Layout(home.root, home.root))
    report.ok("home", str(home.root))
    for finding in machine_checks.ownership(home, []):
        report.add(finding)
    if older := warning_of(home.high_water_mark, SystemClock().now()):
        report.warn("home", older)
    for finding in machine_checks.disk(home):
        report.add(finding)


async def _check_live(report: CheckReport, settings: Settings, home: Home) -> None:
    from gateway.operations.control.control_client import ControlClient  # noqa: PLC0415 - needed in one of two cases

    report.add(machine_checks.unit())
    unreachable = await _check_network(report, settings)
    await _check_search(report, settings)
    await _check_calendars(report, settings)
    await _check_storage(report, settings, home)
    if holder_of(home) is not None:
        client = ControlClient(home)
        try:
            refuse_chat(home)
            status = await anyio.to_thread.run_sync(client.call, "status")
            report_running(report, status, await ask_failing(settings, status))
            _report_mcp(report, status.get("mcp") or {})
            for name in settings.channels.enabled():
                kind = settings.channels.kinds()[name]
                key = f"{kind}_account_check"
                if is_up(status, name) and any(each.key == key for each in operations_in(kind)):
                    found = await anyio.to_thread.run_sync(client.call, key, {"channel": name})
                    report_findings(report, name, [AccountFinding(**each) for each in found["findings"]])
        except ChatOpen as error:
            report.fail("daemon", error)
        except GatewayError as error:
            report.fail("daemon", error, "squidbot logs says more")
        return
    if settings.gateway.http is not None:
        report.add(machine_checks.port(*parse_listen(settings.gateway.http.listen)))
    try:
        with hold_home(home, purpose="command"):
            await _check_shell(report, settings, home)
            await _check_mcp(report, settings, home)
            await check_parts(report, settings, home, unreachable)
    except AlreadyRunning as error:
        report.fail("daemon", error)


async def _check_storage(report: CheckReport, settings: Settings, home: Home) -> None:
    """Try the storage for files, if it is not the home's own."""
    storage = settings.attachments.storage(home.root)
    if storage.is_elsewhere:
        try:
            with anyio.fail_after(_STORAGE_LIMIT_S):
                answer = await anyio.to_thread.run_sync(storage_answers, storage, abandon_on_cancel=True)
            report.add(answer)
        except TimeoutError:
            told = f"{storage.name} has not answered for {_STORAGE_LIMIT_S:g} seconds"
            report.fail("attachments", told, "attachments.store; see docs/attachments.md")


async def _check_shell(report: CheckReport, settings: Settings, home: Home) -> None:
    """Try the sandbox of the shell, as the daemon does at its start."""
    from gateway.app.shell_tools import command_sandbox  # noqa: PLC0415 - rarely wanted

    sandbox = command_sandbox(settings, home)
    if sandbox is not None:
        proof = await sandbox.prove()
        if proof.held:
            report.ok("shell", proof.told)
        else:
            report.warn("shell", f"there is no shell: {proof.told}", proof.help)


def _report_mcp(report: CheckReport, found: Mapping[str, Any]) -> None:
    """Report what the running daemon knows of its MCP servers; none is started."""
    for name, one in found.items():
        _report_server(
            report,
            name,
            one["state"],
            trouble=one["trouble"],
            tools=one["tools"],
            changed=len(one["changed"]),
            left_out=one.get("left_out") or (),
        )


async def _check_mcp(report: CheckReport, settings: Settings, home: Home) -> None:
    """Start each MCP server and ask it what it offers."""
    from gateway.app.mcp_servers import offline_servers  # noqa: PLC0415 - rarely wanted

    async with offline_servers(settings, home, SystemClock()) as servers:
        for name, server in servers.by_name.items() if servers is not None else ():
            try:
                await server.refresh()
                changed = len(server.pins.changes(server.settings.tools))
            except AgentError as error:
                has_log = bool(server.settings.command)
                _report_server(report, name, trouble=str(error), has_log=has_log)
            else:
                left_out, tools = server.pins.left_out, server.state()["tools"]
                _report_server(report, name, "answers", tools=tools, changed=changed, left_out=left_out)


def _report_server(
    report: CheckReport,
    name: str,
    told: str = "",
    *,
    trouble: str = "",
    has_log: bool = True,
    tools: int = 0,
    changed: int = 0,
    left_out: Sequence[str] = (),
) -> None:
    """Report what is known of an MCP server: its state, or its trouble, and the tools that are off."""
    part = f"mcp {name}"
    if trouble:
        report.warn(
            part, trouble, f"squidbot mcp logs {name}; see docs/mcp.md" if has_log else "see docs/mcp.md"
        )
    else:
        are_all_off = changed and not tools
        report.ok(part, told if are_all_off else f"{told}, {tools} {'tool' if tools == 1 else 'tools'}")
    if changed:
        off = "1 tool is" if changed == 1 else f"{changed} tools are"
        report.warn(
            part,
            f"{off} off until you approve {'it' if changed == 1 else 'them'}",
            f"squidbot mcp tools {name}",
        )
    if left_out:
        report.warn(part, f"cannot be used: {'; '.join(left_out)}", "squidbot mcp list")


async def _check_search(report: CheckReport, settings: Settings) -> None:
    """Search for one word at the provider of ``web_search``, if there is one."""
    web = settings.tools.web
    if web.search is None or web.allow == "none":
        return
    from agent_core.tools.web.plugin import web_client  # noqa: PLC0415 - rarely wanted
    from agent_core.tools.web.web_search import search_web  # noqa: PLC0415

    try:
        with anyio.fail_after(_SEARCH_LIMIT_S):
            hits = await search_web(web_client(web), web.search, "squid", 1)
    except (ToolError, TimeoutError) as error:
        said = str(error) or f"{web.search.provider} did not answer in {_SEARCH_LIMIT_S:g} seconds"
        report.warn("web search", said, "tools.web.search; see docs/web.md")
    else:
        found = "answers" if hits else "answers, but finds nothing for 'squid'"
        report.ok("web search", f"{web.search.provider} {found}")


async def _check_calendars(report: CheckReport, settings: Settings) -> None:
    """Log in to the calendar server, if there is one."""
    if settings.tools.dav is None or settings.tools.dav.allow == "none":
        return
    from agent_core.tools.dav.plugin import DavTools  # noqa: PLC0415 - rarely wanted
    from gateway.system.clock import SystemClock  # noqa: PLC0415

    tools = DavTools(settings.tools.dav, SystemClock(), "UTC")
    try:
        with anyio.fail_after(_SEARCH_LIMIT_S):
            found = [
                each.title for kind in ("VEVENT", "VTODO") for each in await tools.client().collections(kind)
            ]
    except (ToolError, TimeoutError) as error:
        said = str(error) or f"the server did not answer in {_SEARCH_LIMIT_S:g} seconds"
        report.warn("calendars", said, "tools.dav; see docs/calendar.md")
    else:
        report.ok("calendars", f"found {', '.join(dict.fromkeys(found))}")
    finally:
        await tools.process.aclose()


async def _check_network(report: CheckReport, settings: Settings) -> dict[str, str]:
    """Look at each server; returns the accounts whose server was not reached, and which part says why."""
    clock = SystemClock()
    servers = list(configured_servers(settings))
    reached: dict[str, ProbeResult] = {}

    async def probe_one(number: int) -> None:
        reached[str(number)] = await probe_server(servers[number], now=clock.now)

    async with anyio.create_task_group() as tasks:
        for number in range(len(servers)):
            tasks.start_soon(probe_one, number)
    found = [(server, reached[str(number)]) for number, server in enumerate(servers)]
    for _, each in found:
        report.add(each.finding)
    if servers:
        told = [(server.part, each.ahead_s) for server, each in found if each.ahead_s is not None]
        report.add(clock_finding(told))
    return {server.account: server.part for server, each in found if each.has_failed and server.account}
