"""
The composition root. It and its parts know every concrete class, and nothing else does. Nothing connects
before `Gateway.run`. Only the database is opened, so that a damaged one is reported first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.app.agent import AgentParts, build_agent
from gateway.app.channel_building import RoutingParts, build_accounts, build_routing, watch_channels
from gateway.app.environment import Configured, Environment, Overrides
from gateway.app.proactive import build_contact, build_proactive
from gateway.app.state_folders import closing
from gateway.app.store import OpenQueue, open_queue
from gateway.app.supervision import build_supervision
from gateway.app.turns import TurnParts, build_turns
from gateway.app.voice import SpeechParts, build_speech
from gateway.routing.access import LOCAL_CHANNELS
from gateway.routing.acknowledgements import StaleAcknowledgements
from gateway.routing.attachment_retention import AttachmentSweeper
from gateway.routing.intake import AcceptGate
from gateway.settings import Settings
from gateway.supervision.gateway import Gateway, Proactive, SupervisionParts
from gateway.system.home import Home
from gateway.turns.failure_and_deferral import DeferralWakeups

__all__ = ["Overrides", "build"]


async def build(
    settings: Settings,
    home: Home,
    overrides: Overrides = Overrides(),  # noqa: B008 - a frozen value
) -> Gateway:
    """Assemble a gateway. Raises StoreUnusable, StateUnusable, StoreUnavailable or ConfigInvalid."""
    env = Environment.from_settings(settings, home, overrides)
    async with open_queue(env) as opened:
        queue, state = opened.queue, opened.account_state
        agent = build_agent(env, queue, state)
        accounts = build_accounts(env, agent.attachments, state)
        await opened.check_accounts(_addresses(accounts))
        contact = build_contact(env, queue, accounts)
        proactive = build_proactive(env, queue, agent, accounts, contact=contact)
        channels = {**accounts, **proactive.channels()}
        routing = build_routing(env, queue, channels)
        speech = await build_speech(env, queue, agent, channels, routing)
        supervision = build_supervision(env, queue, agent, proactive, speech=speech, lease=opened.lease)
        turns = build_turns(
            env, queue, agent, channels, proactive=proactive, routing=routing, supervision=supervision
        )
        return _gateway(env, opened, _Parts(agent, channels, proactive, routing, speech, supervision, turns))


def _addresses(channels: Configured) -> dict[str, str]:
    return {name: channel.account for name, (channel, _) in channels.items() if name not in LOCAL_CHANNELS}


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts that the other files of this package have built."""

    agent: AgentParts
    channels: Configured
    proactive: Proactive
    routing: RoutingParts
    speech: SpeechParts
    supervision: SupervisionParts
    turns: TurnParts


def _gateway(env: Environment, opened: OpenQueue, parts: _Parts) -> Gateway:
    agent, channels, proactive, supervision = parts.agent, parts.channels, parts.proactive, parts.supervision
    turns, routing, speech = parts.turns, parts.routing, parts.speech
    queue, guard = opened.queue, opened.guard
    by_name = {name: channel for name, (channel, _) in channels.items()}
    intake = AcceptGate(guard.may_have_answered)
    watch_channels(
        supervision.supervisor,
        channels,
        queue=queue,
        intake=intake,
        commands=turns.commands,
        answers=turns.answers,
        conversations=env.conversations,
        wakeups=env.wakeups,
    )
    return Gateway(
        wakeups=env.wakeups,
        store=queue,
        waiting=turns.waiting,
        memory=agent.memory,
        files=agent.workspace_files,
        mcp=agent.mcp,
        models=agent.models,
        supervision=supervision,
        handler=turns.handler,
        out_of_band=turns.out_of_band,
        intake=intake,
        channels=by_name,
        conversations=env.conversations,
        deliveries={**routing.deliveries, **speech.deliveries},
        suspects=routing.suspects,
        proactive=proactive,
        begin=partial(opened.begin, env, _addresses(channels)),
        standing_by=guard.check_as_standby,
        lease=opened.lease,
        drain_s=env.settings.gateway.drain_seconds,
        language=env.settings.language,
        console=env.console,
        at_close=_closings(opened, parts),
        background=_background(env, opened, parts),
    )


def _closings(opened: OpenQueue, parts: _Parts) -> list[Callable[[], Awaitable[None]]]:
    """Return the closings of the parts, in their order."""
    agent, state, transcription = parts.agent, opened.account_state, parts.turns.transcription
    return [
        *([] if state is None else [closing(state)]),
        opened.guard.note,
        *([] if transcription is None else [transcription.aclose]),
        agent.pictures.aclose,
        agent.dav.process.aclose,
        agent.plugins.aclose,
        agent.models.aclose,
        agent.search.aclose,
        *parts.speech.at_close,
    ]


def _background(
    env: Environment, opened: OpenQueue, parts: _Parts
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Return the tasks that run until the end."""
    agent, queue = parts.agent, opened.queue
    by_name = {name: channel for name, (channel, _) in parts.channels.items()}
    sweeper = AttachmentSweeper(
        agent.attachments,
        queue,
        agent.named_files,
        clock=env.clock,
        keep_days=env.settings.attachments.keep_days,
    )
    deferrals = DeferralWakeups(queue, clock=env.clock, zone=agent.metering.limits.zone, wakeups=env.wakeups)
    stale = StaleAcknowledgements(queue, parts.routing.acknowledgements, by_name)
    return [
        agent.models.warm_up,
        opened.guard.run,
        agent.shell.prove,
        *([agent.mcp.run] if agent.mcp is not None else []),
        deferrals.run,
        parts.supervision.post_turn.run,
        parts.routing.acknowledgements.run,
        stale.run,
        sweeper.run,
        parts.turns.approvals.run,
        *parts.proactive.background,
    ]
