"""`Person`: starts ``person.mjs`` and speaks with it in lines of JSON. Node and the library come from npm, once."""

from __future__ import annotations

import itertools
import json
import os
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.streams.text import TextReceiveStream

from tests.npm_packages import install_packages, node_program

_SCRIPT = Path(__file__).with_name("person.mjs")


def node_modules() -> Path:
    """Return the folder with matrix-js-sdk and a Node to run it; installed at first use."""
    return install_packages("element", "matrix-js-sdk@43")


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
        command = [str(node_program(modules)), str(_SCRIPT)]
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

    async def do(self, action, *, within_s=60, **given):
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

    async def until(self, condition, *, within_s=60):
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
