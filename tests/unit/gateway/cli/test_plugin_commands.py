"""The operations of a kind of channel of another package: the same command, request and checks as of ours."""

from __future__ import annotations

from typing import Any

import pytest

import gateway.plugins
from agent_core.operation import Operation, operation
from channels.base import ChannelError
from channels.plugin import AccountConfig, ChannelPlugin, RunningAccounts
from gateway.cli import generated_commands
from gateway.cli.commands import add_kind, app
from gateway.errors import GatewayError, NeedsDaemon, NotFound
from gateway.operations.operation_arguments import RequestInvalid
from gateway.operations.operation_context import OperationContext
from gateway.operations.operation_registry import all_operations, find_operation


@operation(
    "pigeon feed", writes=True, render=lambda answer: f"{answer['grains']} grains", confirm="Feed {loft}?"
)
async def feed(context: RunningAccounts, loft: str, *, grains: int = 3) -> dict[str, Any]:
    """
    Feed the pigeons.

    Args:
        loft: Where they live.
        grains: For each of them.
    """
    for pigeon in context.channels_of("pigeon", loft).values():
        await pigeon.feed(grains)  # type: ignore[attr-defined]
    return {"grains": grains}


@operation("cron add", writes=True, done="Added.")
async def intrude(_context: RunningAccounts) -> dict[str, Any]:
    """Stand in the place of one of ours."""
    return {}


class PigeonPlugin(ChannelPlugin[AccountConfig]):
    kind = "pigeon"
    config = AccountConfig
    description = "Pigeons."

    def build(self, config: AccountConfig, services: Any) -> Any:
        raise NotImplementedError

    def operations(self) -> list[Operation]:
        return [each.__operation__ for each in (feed, intrude)]  # type: ignore[attr-defined]


class Pigeon:
    def __init__(self) -> None:
        self.fed: list[int] = []

    async def feed(self, grains: int) -> None:
        if grains > 9:
            raise ChannelError("it is full")
        self.fed.append(grains)


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gateway.plugins._channels, "pigeon", PigeonPlugin())


def context(pigeon: Any, *, running: bool = True) -> OperationContext:
    async def status() -> dict[str, Any]:
        return {}

    nothing: Any = None
    channels = {"pigeon": pigeon} if pigeon else {}
    return OperationContext(nothing, nothing, status=status if running else None, channels=channels)


async def test_a_request_reaches_the_account_with_checked_arguments() -> None:
    pigeon = Pigeon()
    assert "pigeon_feed" in all_operations()
    assert await context(pigeon).call("pigeon_feed", {"loft": "pigeon", "grains": "7"}) == {"grains": 7}
    assert pigeon.fed == [7]
    for wrong in ({}, {"loft": "pigeon", "grains": "many"}, {"loft": "pigeon", "more": 1}):
        with pytest.raises(RequestInvalid):
            await context(pigeon).call("pigeon_feed", wrong)


async def test_what_is_not_there_or_refuses_is_said_in_a_sentence() -> None:
    """The plugin raises its own errors and none of the gateway's."""
    with pytest.raises(GatewayError, match="it is full") as refused:
        await context(Pigeon()).call("pigeon_feed", {"loft": "", "grains": 10})
    assert refused.value.exit_code == 75
    with pytest.raises(NotFound, match="no pigeon account 'x'"):
        await context(Pigeon()).call("pigeon_feed", {"loft": "x"})
    with pytest.raises(NeedsDaemon):
        await context(None, running=False).call("pigeon_feed", {"loft": ""})


def test_a_plugin_declares_nothing_under_another_name() -> None:
    """Neither for the socket nor for the console; ours stay ours."""
    assert all_operations()["cron_add"].run.__module__ == "gateway.operations.job_operations"
    assert find_operation("cron_add").done == ""


def test_the_command_asks_first_and_is_added_when_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: Any
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        generated_commands, "ask", lambda _where, *of, **given: asked.append((of, given)) or given
    )
    monkeypatch.setenv("SQUIDBOT_HOME", str(tmp_path))
    assert "pigeon" not in app
    add_kind(["pigeon", "feed", "x"])
    try:
        words = ["pigeon", "feed", "x", "--grains", "2"]
        assert app(words, result_action="return_value") == 1  # nobody is there to say yes
        assert asked == []
        assert app([*words, "--yes"], result_action="return_value") == 0
        assert asked == [(("pigeon_feed",), {"loft": "x", "grains": 2})]
        assert capsys.readouterr().out == "2 grains\n"
    finally:
        del app["pigeon"]


def test_a_word_that_nothing_has_stays_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("SQUIDBOT_HOME", str(tmp_path))
    add_kind(["statsu"])
    assert "statsu" not in app
