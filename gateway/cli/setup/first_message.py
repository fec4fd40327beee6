"""
Sends the first message to the owner, which proves that messages arrive: once for each address, however often
`squidbot init` runs. It goes by way of the outbox like everything: through the daemon if one runs, otherwise
a gateway runs for the moment, without check-ins. What does not get out in time stays in the outbox, and the
daemon sends it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from gateway.app import build
from gateway.errors import GatewayError
from gateway.operations.control.control_client import ControlClient, ControlFailed, DaemonGone
from gateway.operations.operation_context import OperationContext
from gateway.settings import Settings
from gateway.settings.accounts import access_of, own_addresses
from gateway.store.lease import unwrap_lost_lease
from gateway.store.states import OutboxState
from gateway.store.stores import StoreUnavailable, StoreUnusable
from gateway.supervision.gateway import Gateway
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home, holder_of
from gateway.system.process_tuning import loop_for

TEXT = (
    "Hello, I am squidbot. I can reach you here: answer this message to talk to me. `!help` "
    "lists my commands."
)
_LIMIT_S = 60.0
_EVERY_S = 0.1
_OVER = (OutboxState.SENT, OutboxState.DEAD, OutboxState.UNKNOWN, OutboxState.HELD)


@dataclass(frozen=True, slots=True)
class Greeting:
    """The result of one greeting: ``sent``, or why not."""

    to: str
    sent: bool
    told: str = ""


def targets(settings: Settings) -> list[str]:
    """Return the owner's address per enabled kind of channel, such as ``matrix:@you:example.org``."""
    found = []
    kinds = settings.channels.kinds()
    for kind in dict.fromkeys(kinds[name] for name in settings.channels.enabled()):
        name = next(name for name in settings.channels.enabled() if kinds[name] == kind)
        alias = next((one for one in settings.owner.aliases if one.channel in (kind, name)), None)
        if alias is not None:
            found.append(f"{name}:{alias.address}")
    return found


def greet(settings: Settings, home: Home) -> list[Greeting]:
    """Greet the owner at every address that has no greeting yet. Raises `GatewayError`."""
    known = _Known(home.state("init") / "greeted.json")
    to = [one for one in targets(settings) if one not in known.greeted]
    if not to:
        return []
    if holder_of(home) is not None:
        return [_by_daemon(ControlClient(home), one, known) for one in to]
    open_home(home.root)
    with hold_home(home, purpose="command"):
        return anyio.run(
            partial(_here, settings, home, to, known), backend_options=loop_for(settings.store_url)
        )


class _Known:
    """The recipients of first messages, in a file; noted once the message is durably in the outbox."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.greeted: list[str] = []
        with suppress(OSError, ValueError, TypeError):
            self.greeted = [str(one) for one in json.loads(path.read_text(encoding="utf-8"))]

    def add(self, to: str) -> None:
        self.greeted.append(to)
        self._save()

    def remove(self, to: str) -> None:
        self.greeted.remove(to)
        self._save()

    def _save(self) -> None:
        folder = self._path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.greeted), encoding="utf-8")
        self._path.chmod(0o600)
        if os.geteuid() == 0:  # beside a service that has a user of its own
            whose = folder.parent.stat()
            for path in (folder, self._path):
                os.chown(path, whose.st_uid, whose.st_gid)


def _by_daemon(client: ControlClient, to: str, known: _Known) -> Greeting:
    """Through the running daemon, which may just be starting."""
    give_up_at = time.monotonic() + _LIMIT_S
    while True:
        try:
            client.call("send", {"to": to, "text": TEXT})
            break
        except ControlFailed as error:
            return Greeting(to, sent=False, told=f"{error}; the running daemon may have the old settings")
        except DaemonGone:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(_EVERY_S)
    known.add(to)
    while time.monotonic() < give_up_at:
        outbox = client.call("status")["work"]["outbox"]
        if outbox.get("dead"):
            return Greeting(to, sent=False, told="see squidbot status")
        if not any(outbox.get(state) for state in ("pending", "sending", "uncertain")):
            return Greeting(to, sent=True)
        time.sleep(_EVERY_S)
    return Greeting(to, sent=False, told="it is still on its way; see squidbot status")


async def _here(settings: Settings, home: Home, to: Sequence[str], known: _Known) -> list[Greeting]:
    quiet = settings.agents.heartbeat.model_copy(update={"enabled": False})
    settings = settings.model_copy(update={"agents": settings.agents.model_copy(update={"heartbeat": quiet})})
    try:
        built = await build(settings, home)
    except (StoreUnusable, StoreUnavailable) as error:
        raise GatewayError(str(error)) from error
    with unwrap_lost_lease():
        return await _greetings(built, settings, to, known)


async def _greetings(built: Gateway, settings: Settings, to: Sequence[str], known: _Known) -> list[Greeting]:
    greetings: list[Greeting] = []
    await built.take_lease()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        try:
            await built.started.wait()
            sending = OperationContext(
                built.store,
                built.memory,
                accounts=own_addresses(settings),
                access=access_of(settings),
                channels=built.channels,
            )
            rows = {}
            for one in to:
                rows[one] = (await sending.call("send", {"to": one, "text": TEXT}))["outbox"]
                known.add(one)
            for delivery in built.deliveries.values():
                delivery.wake()
            with anyio.move_on_after(_LIMIT_S):
                while not await _all_over(built, rows.values()):  # noqa: ASYNC110 - the store tells nobody
                    await anyio.sleep(_EVERY_S)
            greetings = [await _outcome(built, one, ids, known) for one, ids in rows.items()]
        finally:
            built.stop()
    return greetings


async def _all_over(built: Gateway, rows: Iterable[Sequence[int]]) -> bool:
    for ids in rows:
        for row_id in ids:
            row = await built.store.outbox.row(row_id)
            if row is not None and row.state not in _OVER:
                return False
    return True


async def _outcome(built: Gateway, to: str, ids: Sequence[int], known: _Known) -> Greeting:
    found = [row for row in [await built.store.outbox.row(one) for one in ids] if row is not None]
    if all(row.state is OutboxState.SENT for row in found):
        return Greeting(to, sent=True)
    why = next((row.error for row in found if row.error), "") or "the server has not taken it yet"
    if any(row.state is OutboxState.DEAD for row in found):
        known.remove(to)  # it will never go out by itself
        return Greeting(to, sent=False, told=why)
    return Greeting(to, sent=False, told=f"{why}; the daemon sends it when it runs")
