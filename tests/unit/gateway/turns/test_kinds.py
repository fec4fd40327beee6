"""The kinds of turns: there is one for every kind of message, and each ends what it does not hand to a model."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from agent_core.messages import InboundMessage
from gateway.turns.heartbeat_turn import HeartbeatTurns
from gateway.turns.turn_kinds import TurnPolicy
from tests.proactive_world import house


async def test_every_kind_of_message_has_a_kind_of_turn(tmp_path: Path) -> None:
    """One without would stand in its session for ever: nothing else answers it."""
    async with house(tmp_path, 0.0) as home:
        kinds = home.built.handler.kinds
        assert set(kinds) == set(get_args(InboundMessage.model_fields["kind"].annotation))


async def test_only_a_check_in_gives_up_before_the_next_one_is_due(tmp_path: Path) -> None:
    """A question and a job wait for a model as long as the rule says, a background job a day; a check-in half of its interval at most."""
    rule = TurnPolicy(outage_budget_s=3600.0)
    async with house(tmp_path, 0.0, heartbeat={"interval_minutes": 10.0}) as home:
        kinds = home.built.handler.kinds
        waits = {name: kind.policy(rule).outage_budget_s for name, kind in kinds.items()}
        background = {"background_job": 86_400.0}
        assert waits == {"message": 3600.0, "reaction": 3600.0, "job": 3600.0, "tick": 300.0} | background
        assert isinstance(kinds["tick"], HeartbeatTurns)
