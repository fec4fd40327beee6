"""
Parses `run` and `status`, as service files and scripts write them, without loading the whole command line.
cyclopts costs each `status` a third of its time and a daemon 2.5 MB for as long as it lives. So the options
of these two commands are read here in their plain spelling. Everything else, and whatever is mistyped, is
left to `gateway.cli.commands`, which says what may be written; a test compares the two.
"""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

_WHILE_STARTING = 20_000
"""What is imported stays: looking for garbage after each 700 objects takes a twentieth of the start."""
_VALUES = {"--home": "home", "--config": "config"}
_FLAGS = {"--verbose": "verbose", "-v": "verbose"}


def read(arguments: Sequence[str]) -> Callable[[], int] | None:
    """The command that these arguments call; None if the whole command line must understand them."""
    match arguments:
        case ["run", *rest]:
            command: Callable[..., int] = run
            flags = _FLAGS
        case ["status", *rest]:
            command = status
            flags = {**_FLAGS, "--json": "as_json"}
        case _:
            return None
    given: dict[str, Path | bool] = {}
    words = iter(rest)
    for word in words:
        name, equals, value = word.partition("=")
        key = _VALUES.get(name) or flags.get(word)
        if key is None or key in given:
            return None
        if name in _VALUES:
            value = value if equals else next(words, "")
            if not value or value.startswith("-"):
                return None
            given[key] = Path(value)
        else:
            given[key] = True
    return partial(command, **given)


def _load_structlog_without_rich() -> None:
    """Keep 3 MB out of the daemon: structlog imports rich for tracebacks that we do not print."""
    import sys

    if not sys.modules.keys() & {"structlog", "rich"}:
        sys.modules["rich"] = None  # type: ignore[assignment]
        import structlog  # noqa: F401

        del sys.modules["rich"]


def run(*, home: Path | None = None, config: Path | None = None, verbose: bool = False) -> int:
    """Run the daemon."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))  # until `gateway.app.daemon` listens
    gc.set_threshold(_WHILE_STARTING)  # until `gateway.app.daemon` finds that all channels are up
    from gateway.system.home import intern_no_path_names
    from gateway.system.process_tuning import use_one_arena

    _load_structlog_without_rich()
    use_one_arena()  # before anything makes threads
    intern_no_path_names()  # before anything is made of names that come and go
    from gateway.app.daemon import run_daemon
    from gateway.settings import load_settings, use_timezone
    from gateway.system.home import Home, find_home, named_config, open_home
    from gateway.system.restore_marker import check_no_restore_pending

    root = find_home(home)
    check_no_restore_pending(root)  # the configuration may be among what is missing
    settings = load_settings(named_config(config) or Home(root).config_file)
    use_timezone(settings)
    if verbose:
        log = settings.gateway.log.model_copy(update={"level": "debug"})
        gateway = settings.gateway.model_copy(update={"log": log})
        settings = settings.model_copy(update={"gateway": gateway})
    return run_daemon(settings, open_home(root))


def status(
    *, home: Path | None = None, config: Path | None = None, verbose: bool = False, as_json: bool = False
) -> int:
    """Show the channels, the queue, and what is stuck."""
    gc.disable()  # the process ends before there is garbage worth looking for
    from gateway.cli.operations_client import asker
    from gateway.cli.output import print_result
    from gateway.operations import render
    from gateway.system.home import named_config

    report = asker(home, named_config(config), verbose=verbose).call("status", reasons=True)
    print_result(as_json, report, render.status(report))
    return 0
