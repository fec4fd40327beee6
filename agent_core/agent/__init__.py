"""
`AgentLoop`: runs one turn, from a question through the model's tool calls to an answer. When calls or tokens
run out, or a tool keeps failing alike, the model is asked once more without tools: half an answer is better
than an apology. When the time is over, the turn ends with `TurnLimitReached`. With a `StepJournal` each step
is durable before the next and a restarted turn reuses it; a step is identified by the chain of question,
answers and results before it, not by the prompt, whose memory a tool of the turn may have changed. Broken or
empty answers are retried once (``loop.ask``), a too long prompt is halved once; all else is for the
pool or the caller.
"""

from __future__ import annotations

from agent_core.agent.loop import AgentLoop, history_of
from agent_core.agent.turn_limits import TurnLimits

__all__ = ["AgentLoop", "TurnLimits", "history_of"]
