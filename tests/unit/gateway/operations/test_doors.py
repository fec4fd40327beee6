"""Every operation over every door, with too few, too many and hostile arguments: a sentence, and nothing done."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import anyio.to_thread
import pytest

from agent_core.operation import Operation
from gateway.cli import generated_commands, operations_client
from gateway.cli.commands import app
from gateway.errors import GatewayError
from gateway.operations.control.control_client import ControlClient, ControlFailed
from gateway.operations.control.control_server import serve_control
from gateway.operations.operation_arguments import RequestInvalid
from gateway.operations.operation_context import OperationContext
from gateway.operations.operation_registry import COMMANDS, all_operations, find_operation
from gateway.system.home import open_home

OPERATIONS = all_operations()
WORDS = [each for each in OPERATIONS.values() if each.render]
HOSTILE = (
    "",
    " ",
    "-1",
    "../../etc/passwd",
    "x" * 100_000,
    "\x00\x1b[2J",
    "m" * 20,
    "d1'; DROP TABLE inbox",
    "\ud800",
)
KIND = inspect.Parameter
HEAVY = {"pydantic", "anyio", "aiohttp", "structlog", "nio", "jinja2", "channels"}


class Touched(BaseException):
    """A part of the gateway was used."""


class Untouchable:
    """A part that nothing may use."""

    def __getattr__(self, name: str) -> Any:
        raise Touched(name)


def context() -> OperationContext:
    part: Any = Untouchable()
    return OperationContext(part, part)


def parameters(operation: Operation) -> list[inspect.Parameter]:
    return list(inspect.signature(operation.run, eval_str=True).parameters.values())[1:]


def required(operation: Operation) -> list[str]:
    return [each.name for each in parameters(operation) if each.default is KIND.empty]


def filled(operation: Operation, value: Any) -> dict[str, Any]:
    return dict.fromkeys((each.name for each in parameters(operation)), value)


def test_every_operation_is_found_by_its_key() -> None:
    """The first word of each key names the modules with it."""
    assert len(OPERATIONS) > 70
    assert all(find_operation(key) == each for key, each in OPERATIONS.items())


def wrong_arguments(operation: Operation) -> list[dict[str, Any]]:
    """Each is wrong in one way."""
    wrong: list[dict[str, Any]] = [{"nobody_has_this": 1}, {"context": 1}, {"self": 1}, {"": 1}]
    wrong += [{}] if required(operation) else []
    return wrong + [{**filled(operation, "1"), name: {"of": []}} for name in filled(operation, "")]


@pytest.mark.parametrize(
    "key", ["nope", "", "_stuck", "__init__", "call", "inbox", "inbox_", "status_list", "inbox list"]
)
async def test_nothing_else_can_be_called(key: str) -> None:
    """The socket offers no other function, and none by the words of its command."""
    with pytest.raises(RequestInvalid):
        await context().call(key, {})


@pytest.mark.parametrize("key", OPERATIONS)
async def test_arguments_are_checked_before_anything_is_used(key: str) -> None:
    """Too few, one too many, one of a wrong kind, and what an attacker of the socket would name."""
    for arguments in wrong_arguments(OPERATIONS[key]):
        with pytest.raises(RequestInvalid):
            await context().call(key, arguments)


async def test_the_socket_refuses_them_in_a_sentence(tmp_path: Path) -> None:
    """Of every operation, over the way that a program uses; the exit code is that of wrong usage."""
    home = open_home(tmp_path / "h")
    async with serve_control(home, context()):
        ask = ControlClient(home).call
        for key, operation in OPERATIONS.items():
            for arguments in wrong_arguments(operation):
                with pytest.raises(ControlFailed, match=f"{key}: ") as refused:
                    await anyio.to_thread.run_sync(ask, key, arguments)
                assert (refused.value.kind, refused.value.exit_code) == ("RequestInvalid", 2)


@pytest.mark.parametrize("key", OPERATIONS)
async def test_hostile_arguments_are_refused_in_a_sentence_or_reach_a_part(key: str) -> None:
    """No other error than ours comes out, whatever stands in the arguments; the parts refuse for themselves."""
    operation = OPERATIONS[key]
    for value in HOSTILE:
        try:
            await context().call(key, filled(operation, value))
        except GatewayError as error:
            assert str(error)
        except (Touched, AttributeError) as error:
            assert isinstance(error, Touched), f"{key}: {error}"


async def test_an_operation_that_does_not_check_is_noticed() -> None:
    """The control: with good arguments the parts are used."""
    with pytest.raises(Touched):
        await context().call("inbox_show", {"id": 1})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The requests that commands make, none of which is answered."""
    found: list[tuple[str, dict[str, Any]]] = []

    def directly(_client: Any, key: str, arguments: dict[str, Any]) -> dict[str, Any]:
        found.append((key, arguments))
        raise GatewayError("nobody is here")

    monkeypatch.setattr(operations_client, "holder_of", lambda _home: None)
    monkeypatch.setattr(operations_client.OperationsClient, "_directly", directly)
    monkeypatch.setattr(generated_commands, "_read_input", lambda: "from the standard input")
    return found


def typed(*words: str) -> int | str:
    """The exit code of a command line, or the sentence of the request that it made."""
    try:
        return int(app.parse_args([*words], exit_on_error=False, print_error=False) is None)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("operation", WORDS, ids=lambda each: each.name)
def test_the_command_takes_what_the_operation_takes(operation: Operation, asked: list[Any]) -> None:
    """Its words in their order and its options by their names; with fewer or others nothing is asked."""
    words = operation.name.split()
    needed = [name for name in required(operation) if name != operation.reads]
    kinds = {each.name: each.annotation for each in parameters(operation)}
    given = [get_args(kinds[name])[0] if get_origin(kinds[name]) is Literal else "1" for name in needed]
    for wrong in ([*given, "--nobody-has-this"], [*given, *["x"] * 9], given[:-1] if given else ["--limit"]):
        if (
            any(
                each.annotation == list[str] | None and each.kind is KIND.POSITIONAL_OR_KEYWORD
                for each in parameters(operation)
            )
            and "x" in wrong
        ):
            continue  # takes any number of words
        with pytest.raises(SystemExit) as ended:
            app([*words, *wrong], print_error=False)
        assert ended.value.code
    assert asked == []
    with pytest.raises(GatewayError):
        app([*words, *given, *(["--yes"] if operation.confirm else [])], result_action="return_value")
    ((key, arguments),) = asked
    assert key == operation.key
    ones = (*given, 1, str(Path("1").absolute()))  # a path is that of the person's folder, not the daemon's
    assert {name for name, one in arguments.items() if one in ones} == set(needed)
    assert operation.reads == "" or arguments[operation.reads] == "from the standard input"


def test_help_and_commands_need_nothing_of_the_daemon() -> None:
    """What a command asks the daemon for is loaded in the daemon alone."""
    made = f"[getattr(generated_commands, name) for name in {COMMANDS!r}]"
    loaded = loaded_by(f"from gateway.cli import generated_commands; {made}")
    assert "cyclopts" in loaded
    assert not loaded & HEAVY
    assert loaded_by("import gateway.operations.decision_operations") & HEAVY >= {
        "pydantic",
        "structlog",
    }  # the control


def loaded_by(statements: str) -> set[str]:
    """The packages that a process has loaded after some statements."""
    script = f"import json, sys; {statements}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}
