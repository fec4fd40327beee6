"""
`AgentLoop`: runs one turn, from a question through the model's tool calls to an answer.

**Limits.** A turn has limits of model calls, tokens and time. When calls or tokens run out, or a
tool keeps failing in the same way, the model is asked once more, without tools and with a note to answer
with what it has: people would rather have half an answer than an apology. When the time is over, the turn
ends with `TurnLimitReached`, because another call would only take more time.

**Resuming after a crash.** With a `StepJournal`, every model answer that calls tools and every tool result is
durable before the next step. A restarted turn uses recorded steps instead of repeating them. The chain of
everything that happened in this turn before a step (the question, the answers, the results) identifies the
step. The prompt does not, because it contains memory that a tool of this turn may have changed, and a
step that is not recognised would be done twice.

**Asking again.** An answer that broke off or was empty is asked for once more (``llm.completion``); a prompt
that is too long is rebuilt once with half its length. Everything else is for the pool (another model) or for
the caller (another time).

**Tools.** ``extra_tools`` belong to one run: they are looked up before the registry, and the registry is
never touched, so runs at the same time do not see each other's. Calls run one after the other, in order.
Tools that are ``deferred`` are in a request only after the model has found them (``tools.deferred``).
"""

from __future__ import annotations

from agent_core.agent.limits import TurnLimits
from agent_core.agent.loop import AgentLoop, history_of

__all__ = ["AgentLoop", "TurnLimits", "history_of"]
