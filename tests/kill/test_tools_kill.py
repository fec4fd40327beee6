"""
Tools that act, under SIGKILL: an effect happens once or is called unknown, and the receipts say what happened.

The whole gateway with its own tools: commands in the sandbox, files, a page of a local site, a file that is sent,
questions and their answers. After the deaths the world is looked at from outside: what the commands have written,
what is in the files, what was answered, and what `squidbot did` would list.
"""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
import pytest

from agent_core.children.order import landlock_version
from gateway.store.model import EffectReceipt, ReceiptOutcome
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.kill.conftest import random_kills
from tests.kill.scenario import Nursery, Scenario
from tests.kill.tally import chance as chance_of

pytestmark = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
ANN = "@ann:hs.test"
PLACE = f"dm-{ANN}"
RANDOM_KILLS, _ = random_kills()
MOMENTS = [
    "model.asked",
    "model.answered",
    *(
        f"{name}.{when}"
        for name in (
            "turns.record_step_start",
            "turns.record_step_result",
            "turns.complete",
            "shell",
            "files",
            "web",
        )
        for when in ("before", "after")
    ),
]
DECIDING = [
    f"{name}.{when}" for name in ("approvals.ask", "approvals.decide") for when in ("before", "after")
]


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(b"A page.")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def runs(number: int, *, more: str = "") -> str:
    """A call of the shell that leaves one line with ``number``."""
    return f'shell {{"command": "echo {number}{more} >> runs"}}'


def said_by(world: Scenario, site: str) -> None:
    """One message of each kind; ``#1`` and ``#4`` run commands, the latter after a page of somebody else."""
    world.say(ANN, f"do {runs(1)}")
    world.say(
        ANN,
        'do write_file {"path": "f2", "content": "END"}; edit_file {"path": "f2", "old": "END", "new": "+END"}',
    )
    world.say(ANN, 'do write_file {"path": "f3", "content": "report"}; send_file {"path": "f3"}')
    world.say(ANN, f'do web_fetch {{"url": "{site}"}}; {runs(4)}; {runs(4, more="b")}')


def seen(world: Scenario) -> list[str]:
    world.server.refresh()
    return [each.text.strip() for each in world.server.seen(PLACE)]


def approve_all(world: Scenario, answered: set[str]) -> bool:
    """Say yes to every question that got no answer yet; whether there was one."""
    new = {
        name for text in seen(world) for name in re.findall(r"^\*\*(a[0-9a-f]{6})\*\*", text, re.MULTILINE)
    }
    for name in sorted(new - answered):
        world.server.say(ANN, f"!approve {name}", conversation=PLACE, native_id=f"$yes-{name}")
    fresh = bool(new - answered)
    answered |= new
    return fresh


def finish(world: Scenario) -> None:
    """No more deaths; every question gets its yes."""
    answered: set[str] = set()
    world.live_until_quiet()
    while approve_all(world, answered):
        world.live_until_quiet()


async def _receipts(world: Scenario) -> list[EffectReceipt]:
    async with await SqliteQueue.open(world.folder / "home" / "gateway.db", clock=SystemClock()) as store:
        return await store.receipts.newest(limit=1000)


def problems(world: Scenario) -> list[str]:
    """What must not be, as seen from outside."""
    found: list[str] = []
    workspace = world.folder / "home" / "workspace"
    path = workspace / "work" / "runs"
    ran = path.read_text().split() if path.exists() else []
    receipts = anyio.run(_receipts, world)
    for number in ("1", "4", "4b"):
        mine = [one for one in receipts if one.arguments.get("command") == f"echo {number} >> runs"]
        found += _about(f"command {number}", ran.count(number), mine)
    unknown = [one for one in receipts if one.outcome is ReceiptOutcome.UNKNOWN]
    if len(unknown) > world.deaths:
        found.append(f"{len(unknown)} unknown after {world.deaths} deaths")
    if any(one.tool != "shell" for one in unknown):
        found.append("a change of a file that can be decided is called unknown")
    expected = {"f2": "+END", "f3": "report"}
    for name, text in expected.items():
        if not (workspace / name).exists() or (workspace / name).read_text() != text:
            found.append(f"{name} is not {text!r}")
    answers = seen(world)
    for number in range(1, 5):
        count = sum(text.startswith(f"re: #{number}") for text in answers)
        if count != 1:
            found.append(f"#{number} has {count} answers")
    sent = [each for each in world.server.seen(PLACE) if each.attachments]
    if len(sent) != 1:
        found.append(f"the file was sent {len(sent)} times")
    told = sum("outcome of this call is unknown" in text for text in answers)
    if (told > 0) != bool(unknown):
        found.append(f"{len(unknown)} unknown receipts, and {told} answers that say so")
    return found


def _about(what: str, times: int, receipts: Sequence[EffectReceipt]) -> list[str]:
    """An effect and its receipts: one of each, or unknown, or neither."""
    outcomes = [one.outcome for one in receipts]
    if times > 1:
        return [f"{what} ran {times} times"]
    if len(outcomes) > 1 or (times and not outcomes):
        return [f"{what} ran {times} times with the receipts {outcomes}"]
    if outcomes == [ReceiptOutcome.DONE] and not times:
        return [f"{what} has a receipt and did not run"]
    if outcomes in ([], [ReceiptOutcome.RUNNING]):
        return [f"{what} was neither run nor called unknown: {outcomes}"]
    return []


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_moment(moment: str, nursery: Nursery, tmp_path: Path, site: str) -> None:
    """Three deaths in a row at the same moment, later each time; then everything is as if it was called unknown or done."""
    world = Scenario(tmp_path, nursery, tools=True, max_attempts=20)
    said_by(world, site)
    for count in (1, 2, 4):
        world.live(die=f"{moment}#{count}")
    finish(world)
    assert world.deaths
    assert problems(world) == []


@pytest.mark.parametrize("moment", DECIDING)
def test_killed_while_it_is_asked_and_decided(
    moment: str, nursery: Nursery, tmp_path: Path, site: str
) -> None:
    """Each of the two questions of one turn is asked once more at the most, and each command runs once."""
    world = Scenario(tmp_path, nursery, tools=True, max_attempts=20)
    said_by(world, site)
    answered: set[str] = set()
    world.live(die=moment)
    world.live_until_quiet()
    while approve_all(world, answered):
        world.live(die=moment)
        world.live_until_quiet()
    assert world.deaths
    assert problems(world) == []
    assert len(answered) == 2


@pytest.mark.timeout(3600)
def test_killed_at_random(nursery: Nursery, tmp_path: Path, site: str) -> None:
    """Seeded moments of all kinds and kills from outside, two or three of them in one story."""
    chance, story = chance_of("tools"), 0
    hits = 0
    while hits < RANDOM_KILLS:
        story += 1
        assert story < 5 * RANDOM_KILLS
        world = Scenario(
            tmp_path / str(story), nursery, tools=True, max_attempts=20, pause_s=0.02, seed=story
        )
        said_by(world, site)
        answered: set[str] = set()
        for _ in range(chance.randint(2, 4)):
            if chance.random() < 0.5:
                world.live(die=f"{chance.choice(MOMENTS + DECIDING)}#{chance.randint(1, 8)}")
            else:
                world.live(kill_after_s=chance.uniform(0.05, 1.2))
            approve_all(world, answered)
        world.live_until_quiet()
        while approve_all(world, answered):
            world.live_until_quiet()
        hits += world.deaths
        assert problems(world) == [], (story, world.deaths)


def test_a_gateway_that_forgets_what_it_has_begun_is_found_out(nursery: Nursery, tmp_path: Path) -> None:
    """The control: without the note of its start a command runs after each death."""
    world = Scenario(tmp_path, nursery, tools=True, max_attempts=20, control="forgets_steps")
    world.say(ANN, f"do {runs(1)}")
    for _ in range(2):
        world.live(die="shell.after")
    world.live_until_quiet()
    assert "command 1 ran 3 times" in problems(world)
