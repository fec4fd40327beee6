"""
``squidbot run`` whose accounts are on an `Exchange` and whose model takes a while; it counts its round trips.

Everything else is as in life: the settings come from the home, the process from `run_daemon`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import anyio
import psycopg

from agent_core.llm.demo.demo_model import EchoModel
from gateway.app import Overrides
from gateway.app.daemon import run_daemon
from gateway.errors import GatewayError
from gateway.settings import load_settings
from gateway.store.postgres import pool
from gateway.system.home import Home, open_home
from tests.doubles.loopback import Delivered, Link, LoopbackChannel
from tests.scale.exchange import LinkedServer

PLAN = "SQUIDBOT_SCALE"
"""In the environment, as JSON: ``socket``, ``accounts``, ``model_s``, ``control``."""


class SlowEcho(EchoModel):
    """It thinks for some seconds."""

    def __init__(self, seconds):
        self._seconds = seconds

    async def chat(self, messages, tools, *, stream=True):
        await anyio.sleep(self._seconds)
        return await super().chat(messages, tools, stream=stream)


class _Counts:
    """By the name of a call of the queue: how often it was made, in how many transactions and round trips."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._now = threading.local()
        self._lock = threading.Lock()

    def install(self) -> None:
        """Count from now on."""
        serve, transaction = pool._Serving.serve, pool.Pool.transaction
        execute, executemany = psycopg.Connection.execute, psycopg.Cursor.executemany

        def serving(serving: Any, call: Any) -> None:
            self._now.name = call.name
            self._add(0)
            serve(serving, call)

        def beginning(self_: Any, db: Any, name: str) -> Any:
            self._add(1)
            return transaction(self_, db, name)

        def one(*given: Any, **more: Any) -> Any:
            self._add(2)
            return execute(*given, **more)

        def many(*given: Any, **more: Any) -> Any:
            self._add(2)
            return executemany(*given, **more)

        pool._Serving.serve = serving  # type: ignore[method-assign]
        pool.Pool.transaction = beginning  # type: ignore[method-assign]
        psycopg.Connection.execute = one  # type: ignore[method-assign, assignment]
        psycopg.Cursor.executemany = many  # type: ignore[method-assign]

    def _add(self, which: int) -> None:
        with self._lock:
            self._by_name[getattr(self._now, "name", "other")][which] += 1

    def told(self) -> tuple[int, dict[str, list[int]]]:
        """This process, and what it has counted."""
        with self._lock:
            return os.getpid(), {name: list(counts) for name, counts in self._by_name.items()}


class _Doubling(LinkedServer):
    """The control: everything goes out once more, and looks like something else."""

    async def take(self, link: Link, message: Delivered) -> str:
        await super().take(link, message)
        return await super().take(link, message.model_copy(update={"key": f"{message.key} again"}))


def main() -> int:
    """Run on the home folder that is named last."""
    plan, root = json.loads(os.environ[PLAN]), Path(sys.argv[-1])
    counts = _Counts()
    counts.install()
    channels = {}
    for name in plan["accounts"]:
        kind = _Doubling if plan.get("control") == "doubles" else LinkedServer
        server = kind(Path(plan["socket"]), counts.told)
        channels[name] = (LoopbackChannel(server, name=name, account=name), "each")
    overrides = Overrides(
        channels=channels,
        models={"echo": SlowEcho(plan["model_s"])},
        allow_from=dict.fromkeys(channels, ("*",)),
    )
    try:
        return run_daemon(load_settings(Home(root).config_file), open_home(root), overrides)
    except GatewayError as error:
        sys.stderr.write(f"squidbot: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
