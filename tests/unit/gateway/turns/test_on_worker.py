"""What only the account's daemon can do ends a worker's part of a turn, and nothing on the way takes it for a failure."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agent_core.errors import AwaitsApproval
from agent_core.messages import SessionKey
from agent_core.models import ToolCall, ToolResult
from agent_core.tools.effects import Effect
from agent_core.tools.execution import ToolRunner
from agent_core.tools.policy import Permission, Proposal
from channels.base import (
    Capabilities,
    Redelivery,
    SupportsDirectMessages,
    SupportsLeaving,
    SupportsRoomNames,
    SupportsRoomPolicy,
)
from gateway.errors import NeedsAccount, needs_account
from gateway.proactive.jobs.permissions import has_left, is_out_of_place, is_overheard, role_now
from gateway.proactive.owner_contact import OwnerContact
from gateway.routing.access import Access, Alias
from gateway.routing.account_elsewhere import AccountElsewhere
from gateway.turns.model_run import ReplySink
from gateway.turns.on_worker import RUN_BY_WORKERS, ConsentOnWorker
from tests.contract.queue_data import message

ROOM = SessionKey("matrix", "!room:hs.test")
ALL = Capabilities(Redelivery.SAME_KEY, previews=True, typing=True, acknowledgements=True)


ACCESS = Access([Alias("matrix", "@ann:hs.test")], {})


class Kept:
    """What the store knows of the owner's conversation."""

    async def read(self, _: str) -> str:
        place = {
            "channel": "matrix",
            "account": "@bot:hs.test",
            "session": str(ROOM),
            "person": "@ann:hs.test",
        }
        return json.dumps(place)


def account(typing: Any = None) -> AccountElsewhere:
    return AccountElsewhere("matrix", "@bot:hs.test", ALL, typing)


def proposal(tool: str) -> Proposal:
    return Proposal(ToolCall(id="c", name=tool, arguments={}), Effect.READ, ())


class Consent:
    """Allows everything, or asks somebody."""

    def __init__(self, asks: bool = False) -> None:
        self.asks = asks
        self.calls = 0

    async def permission(self, number: int, digest: str, proposal: Proposal) -> Permission:
        self.calls += 1
        if self.asks:
            raise AwaitsApproval("somebody is asked")
        return Permission()


@pytest.mark.parametrize(
    "ask",
    [
        lambda channel: channel.alone_with(ROOM, "@ann:hs.test"),
        lambda channel: channel.direct_session("@ann:hs.test"),
        lambda channel: channel.is_in(ROOM),
        lambda channel: channel.probe(None),
        lambda channel: channel.deliver(None, uncertain=None),
        lambda channel: channel.run(None),
    ],
)
async def test_the_live_client_is_never_answered_for(ask: Any) -> None:
    """Not even where an error of a channel would be an answer."""
    with pytest.raises(NeedsAccount):
        await ask(account())


@pytest.mark.parametrize("setting", ["", "matrix:@ann:hs.test", "matrix:!room:hs.test"])
async def test_where_the_owner_reads_alone_is_never_guessed(setting: str) -> None:
    """Somebody may have joined a moment ago: not even "it cannot be said now" is answered, or the question would wait here."""
    contact = OwnerContact(Kept(), setting=setting, channels={"matrix": account()}, access=ACCESS)
    for ask in (contact.reach, contact.elsewhere, lambda: contact.on("matrix")):
        with pytest.raises(NeedsAccount):
            await ask()


async def test_who_reads_along_is_never_guessed_either() -> None:
    """The rules for jobs and questions ask the client at that moment, and so they cannot be applied here."""
    asked = message("hello", session=ROOM)
    for ask in (is_overheard, is_out_of_place):
        with pytest.raises(NeedsAccount):
            await ask(account(), asked)
    with pytest.raises(NeedsAccount):
        await has_left(account(), ROOM)
    with pytest.raises(NeedsAccount):
        await account().people("!room:hs.test")
    with pytest.raises(NeedsAccount):
        role_now(ACCESS, account(), asked)


def test_what_is_asked_at_once_is_not_answered_either() -> None:
    """Who may speak in a room, and what it is called."""
    for ask in (
        lambda: account().allowed_here(ROOM, "@ann:hs.test"),
        lambda: account().room_name("!room:hs.test"),
    ):
        with pytest.raises(NeedsAccount):
            ask()


def test_nobody_takes_an_account_elsewhere_for_one_with_nothing_to_ask() -> None:
    """What a channel cannot do is not asked of it, and would be allowed; so it seems to be able to do everything."""
    for ability in (SupportsDirectMessages, SupportsLeaving, SupportsRoomPolicy, SupportsRoomNames):
        assert isinstance(account(), ability)


async def test_hints_are_passed_on_or_left_out() -> None:
    """Typing is, if there is somebody to tell; nothing is edited while it grows, no reaction shown."""
    told: list[tuple[SessionKey, bool]] = []
    one = account(lambda session, on: told.append((session, on)))
    async with ReplySink(one, ROOM).shown():
        await anyio.sleep(0.01)
    assert told[0] == (ROOM, True)
    assert (one.capabilities.previews, one.capabilities.acknowledgements) == (False, False)
    assert account().capabilities.typing is False


@pytest.mark.parametrize(
    "tool", ["write_file", "shell", "send_message", "schedule", "start_job", "image", "mcp_x", "new_one"]
)
async def test_only_known_tools_run_on_a_worker(tool: str) -> None:
    """The turn is given back before anything is decided about the call, also of a tool nobody has thought about."""
    inner = Consent()
    with pytest.raises(NeedsAccount):
        await ConsentOnWorker(inner).permission(0, "d", proposal(tool))
    assert inner.calls == 0


@pytest.mark.parametrize("tool", sorted(RUN_BY_WORKERS))
async def test_a_known_tool_is_allowed_or_a_question_of_the_accounts_daemon(tool: str) -> None:
    """The policy is the same; nobody is asked from a worker."""
    assert await ConsentOnWorker(Consent()).permission(0, "d", proposal(tool)) == Permission()
    with pytest.raises(NeedsAccount):
        await ConsentOnWorker(Consent(asks=True)).permission(0, "d", proposal(tool))


class Needing:
    """A tool that finds out late."""

    name = "needing"
    description = "Needs the account."
    parameters: dict[str, Any] = {"type": "object", "properties": {}}  # noqa: RUF012 - as the port has it

    async def execute(self) -> ToolResult:
        await anyio.to_thread.run_sync(account().room_name, "!room:hs.test")
        raise AssertionError


async def test_neither_tools_nor_hints_nor_groups_take_it_for_a_failure() -> None:
    """From a thread of a tool, through the runner of tools, through a group, through what shows typing."""
    runner = ToolRunner({"needing": Needing()}, seconds=5, result_chars=100)  # type: ignore[dict-item]
    with pytest.raises(BaseException) as raised:
        async with ReplySink(account(lambda *_: None), ROOM).shown(), anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep, 1)
            await runner.run(ToolCall(id="c", name="needing", arguments={}))
    assert not isinstance(raised.value, Exception)
    assert needs_account(raised.value) is not None


def test_whatever_else_ends_a_turn_is_something_else() -> None:
    """Cancellation, for one."""
    assert needs_account(BaseExceptionGroup("two", [KeyboardInterrupt(), ValueError()])) is None
