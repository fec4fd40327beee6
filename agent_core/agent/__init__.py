"""
`AgentLoop`: runs one turn, from a question through the model's tool calls to an answer.

**Limits.** A turn has so many model calls, so many tokens, so much time. When calls or tokens run out, or a
tool keeps failing in the same way, the model is asked once more, without tools and with a note to answer
with what it has: people would rather have half an answer than an apology. When the time is over the turn
ends with `TurnLimitReached`, because another call would only take more of it.

**Going on after a crash.** With a `StepJournal` every model answer that wants tools and every tool result is
durable before the next step. A restarted turn takes recorded steps in place of doing them. What identifies
a step is the chain of everything that happened in this turn before it (the question, the answers, the
results) and not the prompt: the prompt holds memory that a tool of this very turn may have changed, and a
step that is not recognised would be done twice.

**Asking again.** An answer that broke off or was empty is asked for once more (``llm.asking``); a prompt that
is too long is rebuilt once with half its length. Everything else is for the pool (another model) or for the
caller (another time).

**Tools.** ``extra_tools`` belong to one run: they are looked up before the registry, and the registry is
never touched, so runs at the same time do not see each other's. Calls run one after the other, in order.
Tools that are ``deferred`` are in a request only after the model has found them (``tools.deferred``).
"""

from __future__ import annotations

from agent_core.agent.limits import TurnLimits
from agent_core.agent.loop import AgentLoop, history_of

__all__ = ["AgentLoop", "TurnLimits", "history_of"]
