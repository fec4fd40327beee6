"""
`squidbot run`: one process on one home folder, from the lock to the exit code. The first SIGTERM or SIGINT
drains, the second ends at once: then what is in hand is taken up again at the next start, as after a crash.
SIGHUP ends it at a terminal, which was closed; elsewhere it drains and begins again in the same process with
the configuration as it is now, if that is valid. Everything that can be wrong with the home or the settings
is an exception before the first connection is made.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from shutil import disk_usage

import anyio
import structlog
from aiohttp import web
from anyio import to_thread
from anyio.abc import TaskGroup

from agent_core.backoff import Backoff, BackoffPolicy
from agent_core.http_guards import verify_always
from agent_core.language import use_language
from channels.base import SupportsHttp
from gateway.app import Overrides, build
from gateway.app.erasures import log_interrupted_erasures, run_erasure_requests
from gateway.errors import ConfigInvalid, StateUnusable
from gateway.observability.logs import configure_logs
from gateway.observability.metrics import show_heartbeat, show_store, watch_vitals
from gateway.observability.traces import start_traces, stop_traces
from gateway.operations.control.control_server import serve_control
from gateway.operations.home_files import open_skills
from gateway.operations.http.health import Health, serve
from gateway.operations.job_operations import schedule_context
from gateway.operations.operation_context import OperationContext, UsageSources
from gateway.operations.operation_registry import all_operations
from gateway.operations.privacy.erasure_requests import due_requests, next_due
from gateway.operations.status_operation import show_status
from gateway.proactive.owner_alerts import erasure_alert, reload_alert
from gateway.settings import Settings, load_settings
from gateway.settings.accounts import own_addresses
from gateway.settings.last_good import keep_last_good
from gateway.settings.problems import parse_listen
from gateway.store.lease import unwrap_lost_lease
from gateway.store.stores import StoreUnavailable, StoreUnusable
from gateway.supervision.gateway import Gateway
from gateway.supervision.liveness import environment_watchdog, report_liveness
from gateway.system.home import Home
from gateway.system.lock import hold_home
from gateway.system.process_tuning import loop_for, trim_memory
from gateway.system.sd_notify import Notifier

_FORCED = 1
_DATABASE_RETRY = BackoffPolicy(first_s=2.0, cap_s=10.0)
"""When the server is back, people wait for nothing but this."""
_DATABASE_WAIT_S = 660.0
"""Longer than ``StartLimitIntervalSec`` of the units in ``deploy/systemd``."""
_START_WITHIN_S = 120.0
"""``TimeoutStartSec`` of the same."""
_GARBAGE = (700, 10, 10)
"""CPython's own thresholds; a start has higher ones (`gateway.cli.fast_path.run`)."""
_log = structlog.get_logger(__name__)


def run_daemon(
    settings: Settings,
    home: Home,
    overrides: Overrides = Overrides(),  # noqa: B008 - a frozen value
) -> int:
    """
    Run until a signal; return 0 (drained) or 1 (forced by a second signal).

    Raises AlreadyRunning, StateUnusable or ListenFailed (each has an exit code), and LeaseLost: another
    process may work on the database.
    """
    log = settings.gateway.log
    configure_logs(
        log.level,
        format=log.format,
        file=home.path(log.file) if log.file else None,
        secrets=settings.secrets(),
        file_bytes=int(log.max_file_mb * 1_000_000),
        files_kept=log.keep_files,
    )
    for warning in settings.warnings:
        _log.warning("settings.doubtful", warning=warning)
    verify_always()
    ending = _Ending(at_terminal=_has_terminal())
    with _traced(settings), hold_home(home):  # the home is free before the last traces are sent
        log_interrupted_erasures(settings, home)
        run_erasure_requests(settings, home)
        options = loop_for(settings.store_url)
        code = anyio.run(_run, settings, home, overrides, ending, backend_options=options)
    if ending.reload and not ending.forced:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the command as it was
    return code


@contextmanager
def _traced(settings: Settings) -> Iterator[None]:
    """Within, send traces, if the settings name a collector."""
    if (to := settings.gateway.traces) is not None:
        headers = {name: value.get_secret_value() for name, value in to.headers.items()}
        start_traces(to.endpoint, headers, contents=to.contents, secret_texts=settings.secrets())
    try:
        yield
    finally:
        stop_traces()


@dataclass(slots=True)
class _Ending:
    """The way in which the daemon ends: forced by a second signal, or to begin again."""

    at_terminal: bool
    forced: bool = False
    reload: bool = False


def _has_terminal() -> bool:
    """Return True if a terminal controls this process: it sends SIGHUP when it is closed."""
    try:
        os.close(os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


async def _run(settings: Settings, home: Home, overrides: Overrides, ending: _Ending) -> int:
    notifier, built = Notifier(), None
    with _ended_by_signals(ending) as ended:
        try:
            built = await _built(notifier, partial(build, settings, home, overrides), settings)
        except StoreUnusable as error:
            raise StateUnusable(str(error), **error.fields) from error
    if built is None:
        _log.info("gateway.stopped", reason="it was told to before it had begun")
        return 0
    if ended.cancel_called:
        built.stop()
    with unwrap_lost_lease(), use_language(settings.language):
        return await _running(built, settings, home, notifier, ending)


def _ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that end it. Who began it with ``nohup`` wants it to outlive the terminal."""
    stays = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *(() if stays else (signal.SIGHUP,)))


def _block_sighup(*, blocked: bool) -> None:
    """Let SIGHUP wait while nobody listens, as `gateway.cli.fast_path.run` does: it would end the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK if blocked else signal.SIG_UNBLOCK, (signal.SIGHUP,))


@contextmanager
def _ended_by_signals(ending: _Ending) -> Iterator[anyio.CancelScope]:
    """Yield a cancel scope that SIGINT, SIGTERM and SIGHUP cancel, so that work ends in order."""
    loop, numbers = asyncio.get_running_loop(), _ending_signals()

    def end(number: signal.Signals) -> None:
        ending.reload = number == signal.SIGHUP and not ending.at_terminal
        scope.cancel()

    with anyio.CancelScope() as scope:
        for number in numbers:
            loop.add_signal_handler(number, end, number)
        _block_sighup(blocked=False)
        try:
            yield scope
        finally:
            _block_sighup(blocked=True)
            for number in numbers:
                loop.remove_signal_handler(number)


async def _built(notifier: Notifier, make: Callable[[], Awaitable[Gateway]], settings: Settings) -> Gateway:
    """
    Put the gateway together, as soon as its database can be had.

    A person at a terminal is told at once why it cannot. A service manager gives up on a service that ends a
    few times in a row, so for one this waits, beyond the time in which those are counted.
    """
    backoff, until = Backoff(_DATABASE_RETRY), anyio.current_time() + _DATABASE_WAIT_S
    while True:
        try:
            return await make()
        except StoreUnavailable as error:
            pause_s = backoff.note_failure(random=random.random())
            told = f"waiting for the database: {error}"
            is_waited = settings.store_url is not None and anyio.current_time() < until
            if not is_waited or not notifier.extend_start(told, within_s=pause_s + _START_WITHIN_S):
                raise
            _log.warning("gateway.waits_for_database", error=str(error), retry_in_s=round(pause_s, 1))
            await anyio.sleep(pause_s)


async def _running(
    built: Gateway, settings: Settings, home: Home, notifier: Notifier, ending: _Ending
) -> int:
    all_operations()  # loaded now: an upgrade may replace what is on the disk
    _spare()  # while nobody waits: else this look comes amid the first turns of a backlog, or in `_settle`
    async with AsyncExitStack() as stack:
        # Before anybody can find us: whoever can also wants us to end in order.
        signals = stack.enter_context(anyio.open_signal_receiver(*_ending_signals()))
        stack.callback(_block_sighup, blocked=True)
        _block_sighup(blocked=False)
        await _serve(stack, built, settings, home)
        async with anyio.create_task_group() as tasks:
            reload = partial(_may_reload, built, settings, ending)
            tasks.start_soon(_listen_to_signals, signals, built, tasks, notifier, ending, reload)
            tasks.start_soon(
                partial(
                    report_liveness,
                    notifier,
                    started=built.settled,
                    line=built.status.one_line,
                    stuck=built.watchdog.reason,
                    resort=environment_watchdog(notifier),
                )
            )
            tasks.start_soon(_settle, built)
            tasks.start_soon(_restart_for_erasures, built, home, notifier, ending)
            _log.info("gateway.started", home=str(home.root))
            _keep_settings(settings, home)
            await built.run()
            tasks.cancel_scope.cancel()
    return _FORCED if ending.forced else 0


async def _restart_for_erasures(built: Gateway, home: Home, notifier: Notifier, ending: _Ending) -> None:
    """Restart when somebody is to be forgotten, which is done at a start; once for each such time."""
    began = built.clock.now()
    if left := await to_thread.run_sync(due_requests, home.root, began):
        alert = erasure_alert(left[0].addresses[0])
        built.proactive.owner_alerts.alert(alert.about, alert.text)
    while True:
        due = await to_thread.run_sync(next_due, home.root, began)
        if due is not None and due <= built.clock.now() and not built.stopping:
            _log.info("gateway.restarting", reason="somebody has asked to be forgotten")
            ending.reload = True
            notifier.reloading("somebody has asked to be forgotten")
            built.stop()
            return
        await anyio.sleep(30.0)


async def _may_reload(built: Gateway, settings: Settings, ending: _Ending) -> bool:
    """Return False, log and tell the owner, if the configuration of now could not be started with."""
    if ending.at_terminal or settings.source is None:
        return True
    try:
        await to_thread.run_sync(load_settings, settings.source.path)
    except ConfigInvalid as error:
        _log.error("settings.refused", error=str(error), remedy="squidbot config check")
        alert = reload_alert(str(error))
        built.proactive.owner_alerts.alert(alert.about, alert.text)
        return False
    return True


def _keep_settings(settings: Settings, home: Home) -> None:
    """Keep settings that it has started with as good ones; a failure to keep them stops nothing."""
    try:
        keep_last_good(settings, home.last_good)
    except OSError as error:
        _log.warning("settings.not_kept", path=str(home.last_good), error=str(error))


def make_operations(built: Gateway, settings: Settings, home: Home | None = None) -> OperationContext:
    """Return what an operator may ask of a running gateway."""
    return OperationContext(
        built.store,
        built.memory,
        status=built.status.read,
        upkeep=built.post_turn,
        accounts=own_addresses(settings),
        access=built.conversations.access,
        channels=built.channels,
        planned=schedule_context(built.proactive, built.conversations),
        costs=UsageSources(
            built.store.usage, settings.llm.budget.limits(settings.agents.heartbeat.timezone), built.clock
        ),
        questions=built.store.approvals,
        waiting=built.waiting,
        files=built.files,
        background=built.proactive.background_jobs,
        mcp=built.mcp,
        console=built.console,
        settings=settings,
        home=home,
        skills=open_skills(settings, home) if home is not None else None,
        retry=built.supervisor.retry,
    )


async def _serve(stack: AsyncExitStack, built: Gateway, settings: Settings, home: Home) -> None:
    """Serve the ways in besides the channels: the port for machines, the sockets for the command line."""

    async def refresh() -> None:
        show_store(await built.store.maintenance.stats())
        if not built.is_standby:
            show_heartbeat(await built.proactive.monitor.state())

    watchdog = built.watchdog
    watch_vitals(
        lambda: watchdog.reason() is not None,
        lambda: watchdog.oldest_s,
        lambda: watchdog.is_blocked,
        lambda: disk_usage(home.root).free,
    )

    operations = make_operations(built, settings, home)
    status = partial(show_status, operations)
    health = Health(
        lambda: [] if built.is_standby else built.supervisor.statuses(),
        status,
        refresh=refresh,
        started=lambda: built.is_settled,
        stuck=built.watchdog.reason,
    )
    await stack.enter_async_context(serve_control(home, operations, health=health, built=built))
    if settings.gateway.http is not None:
        host, port = parse_listen(settings.gateway.http.listen)
        more: list[web.AbstractRouteDef] = []
        day = streams = None
        if built.console is not None:
            from gateway.operations.http.console.console_server import Console  # noqa: PLC0415 - few want the pages
            from gateway.operations.http.console.streams import ChangeStreams  # noqa: PLC0415
            from gateway.operations.http.samples import DayHistory  # noqa: PLC0415

            day = DayHistory(built.store.maintenance.stats)
            streams = ChangeStreams(built.wakeups.changes())
            more += Console(operations, built.console, built.standby_notice, day, streams).routes()
        if settings.gateway.http.hooks:
            from gateway.operations.http.hook_routes import Hooks  # noqa: PLC0415 - as above

            hooks, take = settings.gateway.http.hooks, built.proactive.scheduler.take_report
            more += Hooks(hooks, take, built.standby_notice, built.clock.monotonic).routes()
        app = health.app(host=host, more=[*more, *_routes_of(built)])
        chosen = await stack.enter_async_context(serve(app, host=host, port=port))
        if streams is not None:
            stack.callback(streams.end)
        if day is not None:  # a group would wrap the reason why the port cannot be used
            tasks = await stack.enter_async_context(anyio.create_task_group())
            tasks.start_soon(day.run)
            stack.callback(tasks.cancel_scope.cancel)
        _log.info("health.served", listen=f"{host}:{chosen}")


def _routes_of(built: Gateway) -> list[web.AbstractRouteDef]:
    channels = [one for one in built.channels.values() if isinstance(one, SupportsHttp)]
    return [route for one in channels for route in one.routes()]


async def _listen_to_signals(  # noqa: PLR0917
    signals: AsyncIterator[signal.Signals],
    built: Gateway,
    tasks: TaskGroup,
    notifier: Notifier,
    ending: _Ending,
    may_reload: Callable[[], Awaitable[bool]],
) -> None:
    async for number in signals:
        # One terminal sends SIGHUP twice: as its own, and by the shell.
        if number == signal.SIGHUP and (built.stopping or not await may_reload()):
            continue
        if ending.reload:
            ending.reload = False
            notifier.stopping("finishing what is in hand")
            continue
        if ending.forced or built.stopping:
            ending.forced = True
            _log.warning("gateway.forced", signal=signal.Signals(number).name)
            for one in _ending_signals():
                signal.signal(one, signal.SIG_DFL)  # a third one needs nobody to hear it
            tasks.cancel_scope.cancel()
            return
        _log.info("gateway.stopping", signal=signal.Signals(number).name)
        ending.reload = number == signal.SIGHUP and not ending.at_terminal
        tell = notifier.reloading if ending.reload else notifier.stopping
        tell("finishing what is in hand")
        built.stop()


def _spare() -> None:
    """
    Spare the garbage collector what there is by now, after one look at what is new.

    What the start has loaded is there to stay. Looking through it again and again found nothing, and each
    time stopped the loop for 40 to 100 ms (90,000 objects, CPython 3.11); what is frozen costs nothing.
    """
    gc.collect(1)
    gc.freeze()


async def _settle(built: Gateway) -> None:
    """Let the garbage collector look for more than at the start, as soon as the channels are up."""
    for _ in range(30):
        if built.supervisor.all_up:
            break
        await anyio.sleep(1)
    _spare()
    gc.set_threshold(*_GARBAGE)
    await to_thread.run_sync(trim_memory)
