"""
Answers commands of conversations that are operations: finds the form that was typed, and who may use it. An
operation that is called here has a `Caller`, and shows and changes for a guest only what is theirs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_core.language import _, list_of
from agent_core.operation import InChat, Operation, Who
from agent_core.text import read_number
from gateway.errors import GatewayError
from gateway.operations.operation_arguments import RequestInvalid
from gateway.operations.operation_context import Caller, OperationContext
from gateway.operations.operation_registry import IN_CHATS, operations_in
from gateway.turns.commands.chat_command_context import NOT_HERE, CommandContext, place_of

_QUOTES = "<>`'\""
_LINKS = ("mailto:", "https://matrix.to/#/")


def chat_forms(word: str) -> list[tuple[InChat, Operation]]:
    """The forms of a command, with the operations that answer them."""
    found = [(form, each) for each in operations_in(IN_CHATS[word]) for form in each.chats]
    return [(form, each) for form, each in found if form.words.split()[0] == word]


class ChatOperations:
    """Serves commands in conversations; ``owner`` are all addresses of the owner."""

    def __init__(self, context: OperationContext, owner: Sequence[str]) -> None:
        self._context = context
        self._owner = owner

    async def answer(self, asked: CommandContext) -> str:
        """Return the answer to a command. Raises `StoreUnavailable` or `StorageUnavailable`; repeatable."""
        forms = chat_forms(asked.command.name)
        allowed = [each for each in forms if asked.owner or each[0].who is Who.PERSON]
        if not allowed:
            return NOT_HERE
        for form, operation in allowed:
            if (arguments := _arguments(form, operation, asked.command.argument)) is not None:
                return await self._call(asked, form, operation, arguments)
        uses = [f"`!{form.words}`" for form, __ in allowed]
        return _(
            "Write {commands}. Nothing was done.",
            commands=list_of(uses, ", or " if len(uses) == 2 else " or "),
        )

    async def _call(
        self, asked: CommandContext, form: InChat, operation: Operation, arguments: Mapping[str, Any]
    ) -> str:
        place = place_of(asked, self._owner)
        caller = Caller(place, asked.session.id, asked.turn.id, asked.owner)
        try:
            answer = await operation.run(replace(self._context, caller=caller), **arguments, **form.arguments)
        except GatewayError as error:
            said = _(str(error))
            nothing = _(" Nothing was done.") if isinstance(error, RequestInvalid) else ""
            return f"{said[:1].upper()}{said[1:].rstrip('.')}.{nothing}"
        return form.render(answer, Who.OWNER if asked.owner else Who.PERSON)


def _arguments(form: InChat, operation: Operation, typed: str) -> dict[str, Any] | None:
    """The arguments of what was typed after the command; None: it is not this form."""
    pattern = form.words.split()[1:]
    words = typed.split(maxsplit=len(pattern) - 1) if form.words.endswith("…") else typed.split()
    names = iter(list(inspect.signature(operation.run, eval_str=True).parameters.values())[1:])
    found: dict[str, Any] = {}
    if len(pattern) != len(words):
        return None
    for wanted, word in zip(pattern, words, strict=True):
        if wanted.isupper():
            argument, bare = next(names), _bare(word)
            value = read_number(bare) if argument.annotation is int else bare
            if value is None:
                return None
            found[argument.name] = value
        elif word.lower() != wanted:
            return None
    return found


def _bare(word: str) -> str:
    """A word without quotes, and an address without the link that a program has made of it."""
    bare = word.strip(_QUOTES)
    bare = bare.partition("<mailto:")[0] or bare
    for link in _LINKS:
        bare = bare.removeprefix(link)
    return bare
