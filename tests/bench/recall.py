"""
What is left of a long conversation, and what consolidating it costs.

*Recall*: 2,000 messages with 100 planted facts, consolidated by a model that forgets three in ten of the lines that
it is told, each time it is told them. Counted is how many facts the summary still has at the end, with the
messages that are still in the prompt; the floor is the same model without the check of key facts for what got lost.

*Cost*: tokens read and written for consolidation, per message, over a conversation of 100,000 messages. Flat means
that a message late in a long life costs what an early one does.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import anyio
import structlog

from agent_core.memory.consolidation.key_facts import KeyFact
from agent_core.memory.manager import MemoryManager
from agent_core.models import Message, ModelChunk, ToolDefinition, Usage
from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal
from tests.clock import EPOCH
from tests.doubles.consolidation import material_in
from tests.doubles.in_memory_storage import InMemoryMemory

S = "bench/conversation"
FACTS = 100
_NAMES = "Mira Tomas Ilse Bruno Carla Denis Elena Felix Greta Hugo".split()
_THINGS = [
    "the locker code",
    "the flight number",
    "the rent",
    "the door code",
    "the account",
    "the train seat",
    "the tax number",
    "the invoice",
    "the parcel",
    "the policy",
]
_CHAT = "well so I was thinking that we could perhaps look at it again tomorrow because the weather is fine and nobody minds".split()


class Forgetful:
    """Repeats seven of ten lines of what it is told, never more than a summary may have."""

    def __init__(self, chance: random.Random, forgets: float) -> None:
        self._chance = chance
        self._forgets = forgets
        self.usage = Usage()

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        return self._answer(messages)

    async def _answer(self, messages: Sequence[Message]) -> AsyncIterator[ModelChunk]:
        kind, text = material_in(messages)
        parts = text.splitlines() if kind == "conversation" else text.replace(". ", ".\n").splitlines()
        told = [
            part.removeprefix("USER: ").strip()
            for part in parts
            if any(char.isdigit() for char in part) and not part.startswith("(")
        ]
        kept = [line.rstrip(".") for line in told if self._chance.random() >= self._forgets]
        answer = ". ".join(kept) + "." if kept else "They talked."
        usage = Usage(
            prompt_tokens=sum(len(each.content) for each in messages) // 4,
            completion_tokens=len(answer) // 4,
            calls=1,
        )
        self.usage += usage
        yield answer
        yield usage


def planted(chance: random.Random) -> list[tuple[str, str]]:
    """A hundred facts: the sentence, and what must be left of it."""
    found = []
    for number in range(FACTS):
        value = str(10_000 + number * 883 + chance.randrange(800))
        found.append((f"by the way, {_THINGS[number % 10]} of {_NAMES[number // 10]} is {value}", value))
    return found


def chatter(chance: random.Random) -> str:
    return " ".join(chance.choices(_CHAT, k=14))


async def recall(
    *, messages: int = 2000, forgets: float = 0.3, checked: bool = True, seed: int = 7
) -> tuple[int, Usage]:
    """How many facts are left, and what it has cost."""
    chance = random.Random(seed)
    facts = planted(chance)
    places = dict(zip(sorted(chance.sample(range(0, messages, 2), FACTS)), facts, strict=True))
    storage, model = InMemoryMemory(), Forgetful(random.Random(seed), forgets)
    manager = (MemoryManager if checked else _Unchecked)(storage, llm=model)
    for number in range(0, messages, 2):
        text = places[number][0] if number in places else chatter(chance)
        await _turn(storage, number, text, chatter(chance))
        await manager.consolidate_if_due(S)
    built = await manager.build_messages(S, "", "?")
    left = "\n".join(message.content for message in built)
    return sum(value in left for _, value in facts), model.usage


async def cost_curve(*, messages: int = 100_000, points: int = 10) -> list[float]:
    """Tokens for consolidation per message, for each part of the conversation."""
    chance = random.Random(3)
    storage, model = InMemoryMemory(), Forgetful(random.Random(3), 0.3)
    manager = MemoryManager(storage, llm=model)
    curve, before = [], 0
    part = messages // points
    for number in range(0, messages, 2):
        fact = f", and the order number is {10_000 + chance.randrange(89_999)}" if number % 40 == 0 else ""
        await _turn(storage, number, chatter(chance) + fact, chatter(chance))
        if number % 10 == 0:
            await manager.consolidate_if_due(S)
        if (number + 2) % part == 0:
            spent = model.usage.prompt_tokens + model.usage.completion_tokens
            curve.append((spent - before) / part)
            before = spent
    return curve


async def _turn(storage: InMemoryMemory, number: int, question: str, answer: str) -> None:
    at = EPOCH + timedelta(minutes=number)
    await storage.append_message(
        S,
        Message(role="user", content=question, turn=str(number), timestamp=at),
        Message(role="assistant", content=answer, turn=str(number), timestamp=at),
    )


class _Unchecked(MemoryManager):
    """Believes its model."""

    async def _lost(self, wanted: Sequence[KeyFact], *texts: str) -> list[KeyFact]:
        return []


def measure(rig: Rig) -> list[Figure]:
    """Both, on fewer messages if it must be quick."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    left, usage = anyio.run(lambda: recall())
    unchecked, _ = anyio.run(lambda: recall(checked=False))
    messages = 10_000 if rig.quick else 100_000
    rig.say(f"consolidating a conversation of {messages:,} messages")
    curve = anyio.run(lambda: cost_curve(messages=messages))
    spent = (usage.prompt_tokens + usage.completion_tokens) / 2000
    return [
        Figure(
            "facts still known of 100 of one number each, after 2,000 messages",
            left,
            "%",
            Goal(">=", 95),
            floor=unchecked,
            floor_is="without the check of key facts",
            note="the model forgets 30 %",
        ),
        Figure("tokens for consolidation per message, 2,000 messages", spent, ""),
        Figure(
            f"the same over {messages:,} messages, worst tenth",
            max(curve),
            "",
            note="curve: " + " ".join(f"{each:.0f}" for each in curve),
        ),
        Figure(
            "last tenth against second tenth", curve[-1] / curve[1], "x", Goal("<", 1.25), note="flat is 1"
        ),
    ]
