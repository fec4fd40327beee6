"""
Composition root: answers that are spoken. `gateway.app` calls it, and only `gateway.app`. What speaks is not
even imported where nothing is spoken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from gateway.app.agent import AgentParts
from gateway.app.channel_building import RoutingParts
from gateway.app.environment import Configured, Environment
from gateway.budget.metering import Metering
from gateway.routing.delivery import Delivery
from gateway.routing.speech_delivery import Paid, SpeechChannel, SpeechState
from gateway.store.model import SPEECH_CHANNEL
from gateway.store.states import OutboxState
from gateway.store.stores import Queue

if TYPE_CHECKING:
    from agent_core.media.media_config import SpeakSettings
    from agent_core.media.speech import SpeechPort

_OPEN = (OutboxState.PENDING, OutboxState.SENDING, OutboxState.UNCERTAIN)


@dataclass(frozen=True, slots=True)
class SpeechParts:
    """The result of `build_speech`: a delivery per account, the status, and what to close."""

    deliveries: Mapping[str, Delivery]
    state: Callable[[], Mapping[str, Any]]
    at_close: tuple[Callable[[], Awaitable[None]], ...]


async def build_speech(
    env: Environment, queue: Queue, agent: AgentParts, channels: Configured, routing: RoutingParts
) -> SpeechParts:
    """Build the spoken answers; if disabled, waiting rows are dropped. Raises `StoreUnavailable`."""
    settings = env.settings.voice.speak
    voice: _Speaker | None = None
    if settings is not None and settings.when != "never":
        voice = _Speaker(settings, env, agent)
    elif not any(
        row.message.channel == SPEECH_CHANNEL for row in await queue.outbox.rows(states=_OPEN, limit=1000)
    ):
        return SpeechParts({}, dict, ())
    counts, paid = SpeechState(), _paid(agent.metering, settings, env)
    deliveries: dict[str, Delivery] = {}
    for name, (channel, _) in channels.items():
        if not channel.capabilities.attachments:
            continue
        speech = SpeechChannel(
            channel,
            store=queue,
            voice=None if voice is None else voice.get,
            files=agent.attachments,
            refusal=_refusal(agent.metering),
            paid=paid,
            counts=counts,
            clock=env.clock,
        )
        made = Delivery(speech, queue, env.clock, suspects=routing.suspects, wakeups=env.wakeups)
        made.link(up=True)
        deliveries[f"{SPEECH_CHANNEL} {name}"] = made
    return SpeechParts(
        deliveries, lambda: {"speech": counts.state()}, () if voice is None else (voice.aclose,)
    )


class _Speaker:
    """The speech engine of all accounts; loaded with the first text."""

    def __init__(self, settings: SpeakSettings, env: Environment, agent: AgentParts) -> None:
        self._settings = settings
        self._env = env
        self._agent = agent
        self._made: SpeechPort | None = None

    def get(self) -> SpeechPort:
        if self._made is None:
            from agent_core.media.media_client import build_speaker  # noqa: PLC0415 - with the first text

            spec, litellm = self._env.settings.llm, self._agent.models.litellm
            self._made = build_speaker(self._settings, spec, self._env.clock, litellm=litellm)
        return self._made

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made.aclose()


def _refusal(metering: Metering) -> Callable[[SessionKey, bool], Awaitable[str]]:
    async def refusal(_: SessionKey, owner: bool) -> str:  # noqa: FBT001 - a callback
        decision = await metering.refusal(Purpose.SPEECH, owner=owner)
        return "" if decision is None else decision.reason

    return refusal


def _paid(metering: Metering, settings: SpeakSettings | None, env: Environment) -> Paid:
    async def paid(session: SessionKey, text: str) -> None:
        from agent_core.media.speech import cost_of_chars  # noqa: PLC0415 - only where something was spoken

        if settings is None:
            return
        cost = cost_of_chars(text, settings.price(env.settings.llm.providers))
        meter = metering.meter(session, Purpose.SPEECH, owner=False)
        meter.settle(Usage(calls=1, cost_usd=cost, model=settings.model))
        await meter.end()

    return paid
