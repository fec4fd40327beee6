"""
The commands that are operations: ``generated_commands.NAME`` is the command or the group of that first word.

The signature, the options and the help come from the declaration (`agent_core.operation`). A group is made
when its name is asked for, so a command loads its own family alone.
"""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from cyclopts import App, Parameter

from agent_core.operation import Operation
from gateway.cli.command_context import HERE, Json, Where, ask, confirm
from gateway.cli.output import print_result
from gateway.operations.operation_registry import COMMANDS, GROUPS, operations_in

if TYPE_CHECKING:
    from channels.plugin import ChannelPlugin

_YES = inspect.Parameter(
    "yes",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, Parameter(help="Do not ask.")],
)
_Account = Annotated[
    str,
    Parameter(["--account", "--channel"], help="The account, if there are several: its key under channels."),
]
_COMMON = (
    inspect.Parameter("where", inspect.Parameter.KEYWORD_ONLY, default=HERE, annotation=Where),
    inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json),
)


def __getattr__(name: str) -> App | Callable[..., int]:
    if name in COMMANDS and name not in GROUPS:
        return make_command(_operations(name)[0])
    if name in GROUPS or not name.startswith("_"):
        return make_group(name)
    raise AttributeError(name)


def make_group(name: str) -> App:
    """Make the group of the commands with a first word, or with that of a module of the same name."""
    name = name.rpartition(".")[2]
    plugin = None if name in GROUPS else _plugin(name)
    group = App(
        name=name,
        help=GROUPS[name] if plugin is None else plugin.description,
        help_format="plaintext",
        default_parameter=Parameter(negative=()),
    )
    if plugin is not None and plugin.login_help:
        group.command(make_login(plugin), name="login")
    for operation in _operations(name):
        group.command(make_command(operation), name=operation.name.split()[1])
    return group


def _operations(name: str) -> list[Operation]:
    return [each for each in operations_in(name) if each.render and each.name.split()[0] == name]


def _plugin(kind: str) -> ChannelPlugin[Any]:
    from gateway.plugins import channel_kinds

    if kind not in channel_kinds():
        raise AttributeError(kind)
    return channel_kinds()[kind]


def make_login(plugin: ChannelPlugin[Any]) -> Callable[..., int]:
    """Make the command that logs an account of a kind of channel in."""

    def login(
        *,
        account: _Account = "",
        where: Where = HERE,
    ) -> int:
        from gateway.cli.login import log_in_account

        return log_in_account(where, plugin.kind, account)

    login.__doc__ = plugin.login_help
    return login


def make_command(operation: Operation) -> Callable[..., int]:
    """Make the function that cyclopts calls for an operation; it returns the exit code."""
    parameters = [_parameter(each, operation) for each in _arguments(operation)]
    words = [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_ONLY]
    parameters += [*([_YES] if operation.confirm or operation.again else []), *_COMMON]

    def command(
        *given: Any, where: Where = HERE, as_json: bool = False, yes: bool = False, **options: Any
    ) -> int:
        arguments = {**dict(zip(words, given, strict=False)), **options}
        for name, value in arguments.items():
            # The daemon is in another folder. A path may be an address, with a slash less.
            if isinstance(value, Path) and not str(value).startswith("https:/"):
                arguments[name] = str(value.expanduser().absolute())
        if operation.reads and arguments.get(operation.reads) is None:
            arguments[operation.reads] = _read_input()
        if operation.confirm and not yes and not confirm(operation.confirm.format(**arguments)):
            sys.stderr.write("nothing was changed\n")
            return 1
        answer = ask(where, operation.key, **arguments)
        if operation.again and not arguments.get(operation.again):
            if not (as_json and yes):
                print_result(as_json, answer, (operation.render or str)(answer))
            if not yes and not confirm("Go on with exactly this?"):
                sys.stderr.write("nothing was changed\n")
                return 1
            answer = ask(where, operation.key, **{**arguments, operation.again: answer[operation.again]})
        print_result(as_json, answer, (operation.render or str)(answer))
        return int(operation.fails is not None and operation.fails(answer))

    command.__name__, command.__doc__ = operation.run.__name__, operation.run.__doc__
    command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _arguments(operation: Operation) -> list[inspect.Parameter]:
    """The parameters of an operation after its context, with their types."""
    return list(inspect.signature(operation.run, eval_str=True).parameters.values())[1:]


def _parameter(argument: inspect.Parameter, operation: Operation) -> inspect.Parameter:
    """A parameter of a command: what can be given by its place is a word, what is keyword-only an option."""
    kind = argument.kind
    if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        kind = inspect.Parameter.POSITIONAL_ONLY
    annotation, default = argument.annotation, argument.default
    if get_origin(annotation) is Annotated:
        plain, option = get_args(annotation)
        given = {"name": option.flag, "help": option.help}
        annotation = Annotated[plain, Parameter(**{key: text for key, text in given.items() if text})]
    if argument.name == operation.reads:
        annotation, default = annotation | None, None
    return argument.replace(kind=kind, annotation=annotation, default=default)


def _read_input() -> str:
    if sys.stdin.isatty():
        sys.stderr.write("Type the text, then Ctrl-D at the beginning of a line.\n")
    return sys.stdin.buffer.read().decode("utf-8", "replace")
