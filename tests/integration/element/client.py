"""`Person`: starts ``person.mjs`` and speaks with it in lines of JSON. Node and the library come from npm, once."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.streams.text import TextReceiveStream

from devservers.environment import cache_folder

_SCRIPT = Path(__file__).with_name("person.mjs")
_PACKAGES = ("node@22", "matrix-js-sdk@43")
_INSTALL_LIMIT_S = 300


class NodeMissing(Exception):
    """There is no Node, or npm cannot get the library."""


def node_modules() -> Path:
    """The folder with Node 22 and matrix-js-sdk; installed at first use."""
    folder = cache_folder() / "element" / "-".join(_PACKAGES).replace("@", "")
    found = folder / "node_modules"
    if not (folder / "complete").exists():
        npm = shutil.which("npm")
        if npm is None:
            raise NodeMissing("npm is not installed, so there is no Element-like client to test with")
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "i", "--no-audit", "--no-fund", *_PACKAGES]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NodeMissing(f"npm did not install the Element-like client: {error}") from error
        if done.returncode or not _node(found).exists():
            raise NodeMissing(f"npm did not install the Element-like client: {done.stderr[-300:]}")
        (folder / "complete").touch()
    return found


def _node(modules: Path) -> Path:
    return next(iter(modules.glob("node/node_modules/node-*/bin/node")), modules / "node/bin/node")


class Person:
    """One device of a person."""

    def __init__(self, process, user_id):
        self.user_id = user_id
        self.seen = []
        self._process = process
        self._numbers = itertools.count(1)
        self._answers = {}
        self._news = anyio.Event()

    @classmethod
    @asynccontextmanager
    async def up(cls, modules, url, login):
        """A running client, logged in as ``login`` (user_id, access_token, device_id)."""
        environment = {**os.environ, "SQUIDBOT_NODE_MODULES": str(modules)}
        command = [str(_node(modules)), str(_SCRIPT)]
        async with await anyio.open_process(command, env=environment, stderr=None) as process:
            person = cls(process, login.user_id)
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(person._listen)
                    await person.do(
                        "start",
                        url=url,
                        user=login.user_id,
                        token=login.access_token,
                        device=login.device_id,
                    )
                    yield person
                    group.cancel_scope.cancel()
            finally:
                process.kill()

    async def do(self, action, *, within_s=25, **given):
        """Have something done and wait for its outcome."""
        number = next(self._numbers)
        line = json.dumps({"id": number, "do": action, **given}) + "\n"
        await self._process.stdin.send(line.encode())
        with anyio.fail_after(within_s):
            while number not in self._answers:
                await self._news.wait()
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{action}: {answer['error']}"
        return answer["ok"]

    async def until(self, condition, *, within_s=20):
        """The first event (its newest description) that fits."""
        with anyio.move_on_after(within_s):
            while True:
                for event in reversed(self.seen):
                    if condition(event):
                        return event
                await self._news.wait()
        raise AssertionError(f"waited in vain; seen: {self.seen}")

    async def answer(self, text, **options):
        """The event with this text."""
        return await self.until(lambda event: event["content"].get("body") == text, **options)

    async def _listen(self):
        buffered = ""
        async for chunk in TextReceiveStream(self._process.stdout):
            *lines, buffered = (buffered + chunk).split("\n")
            for line in lines:
                said = json.loads(line)
                if "id" in said and "seen" not in said:
                    self._answers[said["id"]] = said
                elif said.get("seen") == "event":
                    self.seen.append(said)
            self._news.set()
            self._news = anyio.Event()
