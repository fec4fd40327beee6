"""
The process that is killed: the whole gateway, on a loopback server in a folder.

``python -m tests.kill.gateway_child`` loads everything once and then forks a gateway for each line of JSON on
its standard input (a `Run`), so that a start costs some hundredths of a second. It answers each with how that
one ended, as `os.waitstatus_to_exitcode` says it. A gateway ends by itself, through its ordinary stop, when
nothing is left to do.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from agent_core.media.image_tool import ImageTool
from agent_core.tools.attachment_tools import ReadAttachmentTool
from agent_core.tools.dav import dav_tools, invitation_tool
from agent_core.tools.files.change_tools import ReceivedFile
from channels.base import Redelivery
from channels.heartbeat.channel import HeartbeatChannel, TickLog
from channels.heartbeat.tick_schedule import Schedule
from gateway.app import Overrides, build
from gateway.errors import GatewayError
from gateway.proactive.appointment_reminders import AppointmentReminders
from gateway.settings import Settings
from gateway.store.lease import LeaseLost, LeaseTimes, unwrap_lost_lease
from gateway.store.stores import Queue, StoreUnavailable
from gateway.supervision.gateway import Gateway
from gateway.system.clock import SystemClock
from gateway.system.home import Home, open_home
from gateway.system.process_tuning import loop_for
from gateway.turns.questions.questions import OWNER_QUESTIONS
from gateway.turns.turn_kinds import TurnPolicy
from tests.doubles.loopback import FileLoopbackServer, LoopbackChannel
from tests.kill import controls
from tests.kill.forking import serve
from tests.kill.late_daemon import ShiftedClock
from tests.kill.points import Striker, StrikingMemory, StrikingQueue, append_line
from tests.kill.scripted import EffectTool, ScriptedModel
from tests.kill.worker import WorkingModel, strike_inside_tools

GROUPS = frozenset({"room"})
_QUIET_LOOKS = 3
_TOOLS = {"shell": {"allow": "owner"}, "web": {"allow_private": ["127.0.0.1"]}}
_PICTURES = {"provider": "pics", "model": "openai/dall-e-9", "usd_per_image": 0.25}
_OWNER = {"channel": "matrix", "address": "@ann:hs.test"}
_OWNER_MAIL = {"channel": "email", "address": "owner@mail.test"}
STATE_KEY = "a-state-key-of-the-tests"


@dataclass(frozen=True, slots=True)
class Run:
    """
    One life of the gateway.

    Args:
        folder: Where its home, its server and its logs are.
        die: The moment of its death, see `Striker`; empty: none.
        policy: What makes redelivery safe, by name.
        queue: ``merge`` or ``each``.
        control: A defect that the oracle must find, see ``controls.py``.
        pause_s: Model, tool and server take up to so long.
        seed: For those pauses.
        trace: Whether the passed moments are written down.
        max_attempts: See `TurnPolicy`.
        kill_after_s: It is killed from outside after so long.
        no_file_beyond: For ``disk_full_s`` the system refuses to write beyond so many bytes of any file; what
            was acknowledged until then goes into the file ``acknowledged-when-full``.
        approval: Whose answers wait for the yes of the owner, who is ``@ann:hs.test`` then, on ``matrix``.
    """

    folder: str
    die: str = ""
    policy: str = "same_key"
    queue: str = "each"
    control: str = ""
    pause_s: float = 0.0
    seed: int = 0
    trace: bool = False
    max_attempts: int = 3
    kill_after_s: float = 60.0
    no_file_beyond: int = 0
    disk_full_s: float = 1.5
    approval: str = ""
    ask: str = ""
    """The tool that needs a yes."""
    effect: str = ""
    """What the tool declares to do, if it is not to keep something."""
    tools: bool = False
    """The owner has all tools, and a model that makes the calls it is told; see ``worker.py``."""
    store: str = ""
    """The URL of the queue's database, if it is not the file in the home."""
    home: str = "home"
    """The name of its home in ``folder``; its number is in the file of that name with ``.pid``."""
    lease_s: float = 0.0
    """How long its lease on the database holds; 0: as in life."""
    send_s: float = 0.0
    """How long the server takes for each answer."""
    shared: bool = False
    """The owner's private conversations are one."""
    image: str = ""
    """Where pictures are made, if the owner has that tool."""
    calendar: tuple[str, str] = ("", "")
    """The address of the owner's calendar server and the password, if there is one."""
    reminds: bool = False
    """It looks at that calendar at its start, at all of the day."""
    invitation: str = ""
    """What every file of a conversation contains; with it the owner has mail, too."""
    consolidate_above: int = 0
    """So many messages of a conversation are not consolidated; 0: nothing is."""
    accounts: int = 1
    """On so many servers, the second one in the folder ``server1``, its channel with a name like that."""
    owned: Sequence[str] = ()
    """The accounts on which ``owner`` is the owner; the first account has the first one's name."""
    owner: str = ""
    speech: str = ""
    """Where all answers are spoken, if they are."""
    stays: bool = False
    """It ends with SIGTERM, and not when it is quiet."""
    clock_ahead_s: float = 0.0
    """By how much the clock of its machine is wrong."""


async def _live(run: Run) -> int:
    folder = Path(run.folder)
    home = open_home(folder / run.home)
    (folder / f"{run.home}.pid").write_text(str(os.getpid()))
    striker = Striker(run.die, folder / "trace" if run.trace else None)
    chance = random.Random(run.seed)

    def pause() -> float:
        return chance.random() * run.pause_s

    server = FileLoopbackServer(folder / "server", redelivery=Redelivery(run.policy))
    server.delay_s, server.answer_delay_s = run.send_s or pause(), pause()
    name = "matrix" if run.approval or run.tools or run.owned else "loopback"
    if run.tools:
        strike_inside_tools(striker)
    if run.control == "repeats_pictures":
        ImageTool.repeatable = True  # type: ignore[attr-defined]
    if run.control == "forgets_steps_of_calendars":
        dav_tools.step_of_call = lambda: time.monotonic_ns()  # type: ignore[assignment]
        invitation_tool.step_of_call = lambda: time.monotonic_ns()  # type: ignore[assignment]
    if run.control == "forgets_reminders":
        AppointmentReminders._notify = _notify_again  # type: ignore[method-assign]
    channel = controls.channel(run.control, LoopbackChannel)(server, name=name, batch=3, point=striker)

    more = {
        f"{name}{number}": (
            LoopbackChannel(
                FileLoopbackServer(folder / f"server{number}", redelivery=Redelivery(run.policy)),
                name=f"{name}{number}",
                account=f"bot{number}",
            ),
            run.queue,
        )
        for number in range(1, run.accounts)
    }

    if run.invitation:
        postbox = FileLoopbackServer(folder / "mail", redelivery=Redelivery(run.policy))
        mail = LoopbackChannel(postbox, name="email", account="bot@mail.test", email_style=True)
        more["email"] = (mail, run.queue)

        async def read_whole(*_: object) -> ReceivedFile:
            return ReceivedFile("invite.ics", run.invitation.encode(), ())

        ReadAttachmentTool.read_whole = read_whole  # type: ignore[assignment]

    def of_model(passed: str) -> None:
        if run.store and passed == "model.asked":
            append_line(folder / "model-calls", run.home)
        striker(passed)

    def wrap_queue(queue: Queue) -> StrikingQueue:
        return StrikingQueue(controls.queue(run.control, queue, channel, striker), striker)

    tool = EffectTool(folder / "effects", striker, pause)
    tool.effect = run.effect or tool.effect
    built = await build(
        Settings.model_validate(
            {
                "gateway": {"max_concurrent_turns": 4, **(_shared(run.store) if run.store else {})},
                "owner": {
                    "aliases": _owner(run),
                    "conversation": "shared" if run.shared else "separate",
                },
                "agents": {
                    **({"heartbeat": {"interval_minutes": 1440.0}} if run.reminds else {}),
                    "consolidation_threshold": run.consolidate_above or 100,
                    "keep_recent_ratio": 0.5,
                },
                "tools": {
                    "require_approval": [run.ask] if run.ask else [],
                    **(_TOOLS if run.tools else {}),
                    **({"image": _PICTURES} if run.image else {}),
                    **({"dav": _calendar(run)} if run.calendar[0] else {}),
                },
                **({"llm": _llm(run)} if run.image or run.speech else {}),
                **(_spoken(run) if run.speech else {}),
            }
        ),
        home,
        Overrides(
            clock=ShiftedClock(run.clock_ahead_s) if run.clock_ahead_s else None,
            channels={name: (channel, run.queue), **more},
            models={"demo": (WorkingModel if run.tools else ScriptedModel)(of_model, pause)},
            allow_from=dict.fromkeys((name, *more), ("*",)),
            approval={name: run.approval} if run.approval else {},
            wrap_queue=wrap_queue,  # type: ignore[arg-type]
            wrap_memory=lambda memory: StrikingMemory(controls.memory(run.control, memory, striker), striker),  # type: ignore[arg-type, return-value]
            tools=[tool],
            policy=TurnPolicy(max_attempts=run.max_attempts),
            heartbeat=(lambda log: _check_ins(home, log)) if run.reminds else None,
            lease=_lease(run),
        ),
    )
    with unwrap_lost_lease():
        await _run(run, built, server)
    return 0


def _check_ins(home: Home, log: TickLog) -> HeartbeatChannel:
    """Check-ins with nothing to do."""
    return HeartbeatChannel(
        Schedule(1440.0),
        checklist=home.root / "none.md",
        clock=SystemClock(),
        again_after=timedelta(1),
        log=log,
    )


async def _notify_again(self: AppointmentReminders, each: dict[str, Any]) -> bool:
    """Tell of an appointment, and remember nothing of it."""
    reached = await self.notifier.notify("appointments", f"Coming up: {each['summary']}")
    return reached.target is not None


def _calendar(run: Run) -> dict[str, Any]:
    url, password = run.calendar
    return {"url": url, "username": "you", "password": password, "ask": False}


def _shared(store: str) -> dict[str, str]:
    """What all homes that work on one database must have."""
    return {"store": store, "state_key": STATE_KEY}


def _owner(run: Run) -> list[dict[str, str]]:
    if run.owned:
        return [{"channel": name, "address": run.owner} for name in run.owned]
    found = [_OWNER] if run.approval or run.tools else []
    return found + ([_OWNER_MAIL] if run.invitation else [])


def _spoken(run: Run) -> dict[str, Any]:
    return {
        "voice": {"speak": {"when": "always", "provider": "pics", "model": "openai/tts-x"}},
        "attachments": {"store": f"{run.folder}/files"},
    }


def _llm(run: Run) -> dict[str, Any]:
    return {
        "providers": {"pics": {"api_base": run.image or run.speech, "api_key": "x"}},
        "models": {"demo": {"model": "demo/demo"}},
        "pools": {"main": ["demo"]},
        "default_pool": "main",
    }


def _lease(run: Run) -> LeaseTimes:
    ttl_s = run.lease_s
    if not ttl_s:
        return LeaseTimes()
    if run.control == "goes_on":  # it knows no end
        return LeaseTimes(ttl_s, 1e6, 1e6, 1e9, 1e9)
    return LeaseTimes(ttl_s, ttl_s / 6, ttl_s / 12, ttl_s * 4 / 6, ttl_s * 5 / 6)


async def _run(run: Run, built: Gateway, server: FileLoopbackServer) -> None:
    async with anyio.create_task_group() as tasks:
        if run.stays:
            tasks.start_soon(_stop_when_told, built)
        else:
            tasks.start_soon(
                partial(
                    _stop_when_quiet,
                    built,
                    server,
                    consolidating=run.consolidate_above > 0,
                    waiting=bool(run.ask) or run.tools,
                )
            )
        if run.no_file_beyond:
            tasks.start_soon(_full_for_a_while, run, server)
        await built.run()
        tasks.cancel_scope.cancel()


async def _stop_when_told(built: Gateway) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            built.stop()


async def _stop_when_quiet(
    built: Gateway, server: FileLoopbackServer, *, consolidating: bool, waiting: bool
) -> None:
    store: Any = built.store
    store = getattr(store, "_inner", store)  # looking must not pass the moments
    quiet = 0
    while quiet < _QUIET_LOOKS:
        await anyio.sleep(0.01)
        try:
            still = await _is_quiet(built, store, server, consolidating=consolidating, waiting=waiting)
        except StoreUnavailable:  # the gateway lives through it, and so does who looks
            still = False
        quiet = quiet + 1 if still else 0
    built.stop()


async def _is_quiet(
    built: Gateway, store: Any, server: FileLoopbackServer, *, consolidating: bool, waiting: bool
) -> bool:
    server.refresh()
    stats = await store.maintenance.stats()
    # A turn that waits for a yes is as quiet as it gets.
    asked = sum(one.verdict is None for one in await store.approvals.questions()) if waiting else 0
    busy = [
        stats.inbox["ready"] - asked,
        stats.inbox["running"],
        *(stats.outbox[s] for s in ("pending", "sending", "uncertain")),
    ]
    # What was accepted just before a death is not always acknowledged later, and needs not be.
    ours = len(await store.inbox.rows(session=OWNER_QUESTIONS, limit=1000))
    busy.append(max(0, stats.outbox["held"] - ours))  # drafts of which the owner has not been told yet
    if any(each.text.startswith("!retry") for each in server.said):
        rows = await store.inbox.rows(limit=1000)
        ours += sum(row.message.native_id.endswith(" again") for row in rows)  # nobody has said that
    taken = max(server.acknowledged, sum(stats.inbox.values()) - ours)
    if consolidating:
        state = built.post_turn.state()["consolidation"]
        busy.append(state["running"] + state["waiting"])
    return not any(busy) and taken == len(server.said)


async def _full_for_a_while(run: Run, server: FileLoopbackServer) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (run.no_file_beyond, hard))
    await anyio.sleep(run.disk_full_s)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    server.refresh()
    (Path(run.folder) / "acknowledged-when-full").write_text(str(server.acknowledged))


def _lived(run: Run) -> int:
    if run.no_file_beyond:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    try:
        return anyio.run(_live, run, backend_options=loop_for(run.store or None))
    except GatewayError as error:
        print(error)
        return error.exit_code
    except StoreUnavailable as error:
        print(error)
        return LeaseLost.exit_code  # as the command line does


if __name__ == "__main__":
    serve(Run, _lived)
