"""
Fixtures for every test. A module that wants virtual time says ``pytestmark = pytest.mark.virtual_time``.

``make test`` leaves out what is marked ``slow``: single tests that say so, and all that talks to real servers or kills
processes, but for one of each kind, which is marked ``smoke``. ``make test-all`` runs everything. A run that must end
at ``TESTS_UNTIL`` begins with what was changed last and goes on where no day has been for longest, see `_turns`.

Property tests draw the same examples in every run, so that a change is what makes them fail; ``make explore``
lets them look where nobody has looked.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog
from xdist.scheduler import LoadFileScheduling

from tests.clock import VirtualLoop

pytest_plugins = ["tests.servers", "tests.delegated_logins"]

HERE = Path(__file__).parent
SLOW = tuple(HERE / folder for folder in ("deploy", "integration", "kill", "soak"))
WAITING = (
    *SLOW,
    *(
        HERE / "unit" / path
        for path in ("test_architecture.py", "test_weight.py", "gateway/cli", "agent_core/children")
    ),
)
"""What waits for servers and processes of its own."""
SLOW_WORDS = re.compile(r"\bmark\.(?:slow|integration|kill)\b")
WHOLLY_SLOW = re.compile(rf"^pytestmark = .*{SLOW_WORDS.pattern}", re.MULTILINE)
SMOKE_WORD = re.compile(r"\bmark\.smoke\b")
TOGETHER = {
    "tests/integration/": "real servers",
    "tests/kill/": "real servers",
    "tests/unit/gateway/cli/": "commands",
}
"""Files that one worker has in ``make test``: each would start servers, or import the command line, for a few tests."""
SHORTEST_LIMIT_S = 300
NO_TIME = "no time is left for it on this machine"
LAST_COMMITS, DAYS = 30, 4

# How long a machine takes to draw or to try an example says how busy it is.
BUSY = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=BUSY)
hypothesis.settings.register_profile("explore", max_examples=1000)
hypothesis.settings.load_profile("explore" if os.environ.get("SQUIDBOT_EXPLORE") else "same")

# What rich draws around an error that is logged takes 50 ms, and the daemon does without it, too.
for processor in structlog.get_config()["processors"]:
    if isinstance(processor, structlog.dev.ConsoleRenderer):
        processor.exception_formatter = structlog.dev.plain_traceback


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a file unread that has nothing for ``-m slow`` or ``-m "not slow"``; `pytest_collection_modifyitems` checks."""
    if not collection_path.match("test_*.py") or config.option.markexpr not in {"slow", "not slow"}:
        return None
    in_slow_folder = _is_in(collection_path, SLOW)
    if in_slow_folder and config.option.markexpr == "slow":
        return None
    text = collection_path.read_text(encoding="utf-8")
    if in_slow_folder or (config.option.markexpr == "not slow" and WHOLLY_SLOW.search(text)):
        return None if SMOKE_WORD.search(text) else True
    return None if config.option.markexpr == "not slow" or SLOW_WORDS.search(text) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what is slow. What waits most begins first, so that the processors have other work meanwhile."""
    for item in items:
        limit = item.get_closest_marker("timeout")
        if limit is not None and limit.args[0] < SHORTEST_LIMIT_S:
            raise pytest.UsageError(
                f"{item.nodeid}: a limit under {SHORTEST_LIMIT_S} s fails on a busy machine"
            )
        real = item.get_closest_marker("integration") or item.get_closest_marker("kill")
        in_slow_folder, smoke = _is_in(item.path, SLOW), item.get_closest_marker("smoke")
        slow = item.get_closest_marker("slow") or real or in_slow_folder
        words = SMOKE_WORD if in_slow_folder else SLOW_WORDS
        if (smoke if in_slow_folder else slow) and not words.search(_text_of(item.path)):
            raise pytest.UsageError(
                f"{item.path} gets its mark from elsewhere; half of its tests would run nowhere"
            )
        if slow and not smoke:
            item.add_marker("slow")
    items.sort(key=lambda item: not _is_in(item.path, WAITING))
    if until := os.environ.get("TESTS_UNTIL"):
        turns = _turns({item.path for item in items}, day=int(until) // 86_400)
        items.sort(key=lambda item: turns[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look through no test and no library for garbage, neither while they are collected nor later: they stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class SharedServersScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Deals out files, but all of a row of `TOGETHER` to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        shared = (name for folder, name in TOGETHER.items() if nodeid.startswith(folder))
        return next(shared, super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """Share real servers where each kind is tested once; all of their tests are too many for one worker."""
    fast = config.option.markexpr == "not slow" and config.option.dist == "loadfile"
    return SharedServersScheduling(config, log) if fast else None


def _turns(paths: set[Path], *, day: int) -> dict[Path, int]:
    """
    Return the place of each file: first those that the last commits have touched, the newest first, then the others.

    Their order is fixed, but each of `DAYS` days begins a fourth of them later, so what one day has no time for is not
    what the next has none for.
    """
    log = ["git", "log", f"-{LAST_COMMITS}", "--format=", "--name-only", "--", "tests"]
    touched = subprocess.run(log, cwd=HERE.parent, capture_output=True, text=True, check=False).stdout
    newest = [path for path in dict.fromkeys(HERE.parent / name for name in touched.split()) if path in paths]
    others = sorted(
        paths.difference(newest),
        key=lambda path: (zlib.crc32(path.relative_to(HERE).as_posix().encode()), path),
    )
    start = day % DAYS * len(others) // DAYS
    return {path: place for place, path in enumerate([*newest, *others[start:], *others[:start]])}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin nothing after TESTS_UNTIL."""
    if time.time() > float(os.environ.get("TESTS_UNTIL", "inf")):
        pytest.skip(NO_TIME)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests had no time."""
    skipped = terminalreporter.getreports("skipped")
    if left := sum(NO_TIME in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"{left} tests did not run: {NO_TIME}")


@functools.cache
def _is_in(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


@functools.cache
def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """What a command that a test has run in this process says of the log does not hold for the next test."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> object:
    """Asyncio is what the libraries below us speak; what is marked ``virtual_time`` waits in no time."""
    virtual = request.node.get_closest_marker("virtual_time") is not None
    return ("asyncio", {"loop_factory": VirtualLoop}) if virtual else "asyncio"
