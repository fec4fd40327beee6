"""The positions of one account are committed one after the other, each as it is when it is its turn."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import pytest

from channels.matrix.sync.receiver import Receiver


class Inbox:
    """Keeps the positions; one that is slow stands for a store that is away for a moment."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.back = anyio.Event()

    async def accept(self, _messages, positions) -> None:
        await self.back.wait()
        self.kept |= positions


@pytest.fixture
def anyio_backend(virtual_backend):
    return virtual_backend


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "control"])
async def test_a_notice_that_waits_for_a_commit_writes_no_older_text_over_a_newer(in_order):
    inbox, commit, waiting = Inbox(), anyio.Lock(), ["older"]
    receiver = SimpleNamespace(fetching=SimpleNamespace(commit=commit), _inbox=inbox)

    async def receive() -> None:
        async with commit:
            await inbox.back.wait()
            waiting[:] = ["newer"]
            inbox.kept["waiting"] = waiting[0]

    async def notice() -> None:
        if in_order:
            await Receiver.save(receiver, lambda: {"waiting": waiting[0]})
        else:
            await inbox.accept([], {"waiting": waiting[0]})

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(notice)
        await anyio.wait_all_tasks_blocked()
        inbox.back.set()
    assert (inbox.kept["waiting"] == "newer") is in_order
