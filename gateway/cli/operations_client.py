"""
Asks the running daemon, or, when none runs, the home folder itself. Directly on the home folder the lock is
held for the moment, because the database has exactly one process that opens it for writing. A home that does
not exist yet is not made by looking at it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.output import quiet_logs, say_defaults
from gateway.errors import AlreadyRunning, ChatOpen, ConfigInvalid, NotFound
from gateway.operations.control.control_client import ControlClient, DaemonGone
from gateway.operations.operation_registry import find_operation
from gateway.system.home import Home, find_home
from gateway.system.lock import hold_home, holder_of, refuse_chat
from gateway.system.restore_marker import check_no_restore_pending

if TYPE_CHECKING:
    from agent_core.memory_ports import MemoryPort
    from agent_core.ports import Clock
    from agent_core.tools.mcp.servers import McpServers
    from gateway.settings import Settings
    from gateway.store.stores import MemoryInDatabase, Queue
    from gateway.turns.post_turn import OfflinePostTurn


def asker(home: Path | None, config: Path | None, *, verbose: bool = False) -> OperationsClient:
    """The daemon of a home, or the home itself, as the target of operations."""
    found = Home(find_home(home))
    return OperationsClient(
        found, config or found.config_file, must_exist=config is not None, verbose=verbose
    )


class OperationsClient:
    """Calls operations; ``verbose`` shows what is logged meanwhile."""

    def __init__(self, home: Home, config: Path, *, must_exist: bool = False, verbose: bool = False) -> None:
        self._home = home
        self._config = config
        self._must_exist = must_exist
        self._verbose = verbose

    def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Call an operation, in the daemon or on the home. Raises GatewayError."""
        given = {key: value for key, value in arguments.items() if value is not None}
        give_up_at = time.monotonic() + 10.0
        while True:
            try:
                if holder_of(self._home) is not None:
                    refuse_chat(self._home)
                    daemon = ControlClient(self._home)
                    result = daemon.call(name, given)
                    if daemon.timezone:
                        os.environ["TZ"] = daemon.timezone
                        time.tzset()
                    return result
                return self._directly(name, given)
            except ChatOpen:
                raise
            except (DaemonGone, AlreadyRunning):
                # It is just starting or stopping.
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(0.1)

    def _directly(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        check_no_restore_pending(self._home.root)
        settings = self._settings(needed="settings" in find_operation(name).needs)
        is_new = settings.store_url is None and not self._home.database.exists()
        if is_new and "accounts" not in find_operation(name).needs:
            raise NotFound(
                f"there is nothing in {self._home.root} yet: is it the right home (--home, SQUIDBOT_HOME)? "
                "The first `squidbot run` or `squidbot chat` fills it"
            )
        import anyio  # noqa: PLC0415 - a question to the daemon needs no event loop

        from gateway.system.home import open_home  # noqa: PLC0415

        quiet_logs(verbose=self._verbose)
        home = open_home(self._home.root, as_guest=True)
        with hold_home(home, purpose="command"):
            return anyio.run(_call, home, settings, name, arguments)

    def _settings(self, *, needed: bool) -> Settings:
        from gateway.settings import Settings, load_settings, use_timezone  # noqa: PLC0415

        try:
            settings = load_settings(self._config, missing_ok=not self._must_exist)
            use_timezone(settings)
            return settings
        except ConfigInvalid as error:
            if needed or not self._config.exists():
                raise
            say_defaults(error)
            return Settings()


def homes_on_server(home: Path | None, config: Path | None) -> list[dict[str, Any]]:
    """Return the homes on the configured PostgreSQL server, each with its machines. Raises GatewayError."""
    import anyio  # noqa: PLC0415 - as above

    from gateway.settings import load_settings  # noqa: PLC0415
    from gateway.store.lease import facts_of  # noqa: PLC0415
    from gateway.store.opening import open_postgres  # noqa: PLC0415

    url = load_settings(config or Home(find_home(home)).config_file).store_url
    if url is None:
        raise ConfigInvalid(
            "this home is not on a PostgreSQL server (gateway.store): it has no cluster to list"
        )
    with open_postgres():
        from gateway.store.postgres.homes import homes_of  # noqa: PLC0415

        found = anyio.run(homes_of, url)
    return [{"name": one.name, "problem": one.problem, "machines": facts_of(one.machines)} for one in found]


async def _machines(store: Queue) -> dict[str, Any]:
    from gateway.store.lease import machine_facts  # noqa: PLC0415 - on PostgreSQL only

    return await machine_facts(store.maintenance)


async def _call(home: Home, settings: Settings, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from gateway.operations.operation_context import OperationContext  # noqa: PLC0415
    from gateway.store.opening import lock_queue, opened_queue  # noqa: PLC0415
    from gateway.system.clock import SystemClock  # noqa: PLC0415

    operation, clock = find_operation(name), SystemClock()
    async with AsyncExitStack() as stack:
        limits = settings.llm.budget.limits(settings.agents.heartbeat.timezone)
        store = await opened_queue(home.database, settings.store_url, clock=clock, zone=limits.zone)
        stack.push_async_callback(store.aclose)
        if operation.writes:
            # Of all else a daemon elsewhere would not hear, or it is in the middle of what is changed.
            await stack.enter_async_context(lock_queue(store, settings.store_url, home.lease_holders))
        parts: dict[str, Any] = {"memory": None}
        if settings.store_url is not None:
            parts["others"] = partial(_machines, store)
        if "mcp" in operation.needs:
            parts["mcp"] = await stack.enter_async_context(_servers(settings, home, clock))
        if "accounts" in operation.needs:
            from gateway.app.state_folders import account_folders  # noqa: PLC0415 - with it much of the gateway

            parts["folders"] = await stack.enter_async_context(account_folders(settings, home, clock))
        if "home" in operation.needs:
            parts |= _home_parts(home, settings, store, clock, search="search" in operation.needs)
        return await OperationContext(store, **parts).call(name, arguments)


def _home_parts(
    home: Home, settings: Settings, store: Queue, clock: Clock, *, search: bool
) -> dict[str, Any]:
    """The parts of a home at rest for operations on more than its queue."""
    from agent_core.storage.jsonl_memory import JsonlMemory  # noqa: PLC0415
    from gateway.operations.background_operations import open_background_jobs  # noqa: PLC0415
    from gateway.operations.home_files import LazyHomeFiles, open_skills  # noqa: PLC0415
    from gateway.operations.job_operations import offline_schedule_context  # noqa: PLC0415
    from gateway.operations.operation_context import UsageSources  # noqa: PLC0415
    from gateway.settings.accounts import access_of, own_addresses  # noqa: PLC0415
    from gateway.store.opening import memory_in_database  # noqa: PLC0415

    workspace, limits = (
        home.path(settings.agents.workspace),
        settings.llm.budget.limits(settings.agents.heartbeat.timezone),
    )
    beside = memory_in_database(store)
    memory: MemoryPort = (
        JsonlMemory(home.root, clock=clock, workspace=workspace) if beside is None else beside.memory
    )
    return {
        "memory": memory,
        "upkeep": _upkeep(home, settings, beside, memory, clock) if search else None,
        "accounts": own_addresses(settings),
        "access": access_of(settings),
        "planned": offline_schedule_context(settings, store.state, store.jobs, clock),
        "costs": UsageSources(store.usage, limits, clock),
        "questions": store.approvals,
        "files": LazyHomeFiles(settings, home, clock),
        "skills": open_skills(settings, home),
        "background": open_background_jobs(store, memory, workspace, clock),
    }


def _servers(settings: Settings, home: Home, clock: Clock) -> AbstractAsyncContextManager[McpServers | None]:
    from gateway.app.mcp_servers import offline_servers  # noqa: PLC0415 - with it comes the whole gateway

    return offline_servers(settings, home, clock)


def _upkeep(
    home: Home, settings: Settings, beside: MemoryInDatabase | None, memory: MemoryPort, clock: Clock
) -> OfflinePostTurn:
    from agent_core.llm.factory import build_models  # noqa: PLC0415
    from agent_core.storage.layout import Layout  # noqa: PLC0415
    from agent_core.storage.search_index import SearchIndex  # noqa: PLC0415
    from gateway.app.agent import memory_manager  # noqa: PLC0415
    from gateway.operations.home_files import open_skills  # noqa: PLC0415
    from gateway.turns.post_turn import OfflinePostTurn  # noqa: PLC0415

    skills = open_skills(settings, home)
    manager = memory_manager(settings, memory, skills, build_models(settings.llm, clock))
    layout = Layout(home.root, home.path(settings.agents.workspace))
    search = SearchIndex(home.root / "search.db", layout) if beside is None else beside.search
    return OfflinePostTurn(manager, search)
