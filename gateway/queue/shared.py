"""The session of all private conversations of the owner, where the settings make them one. Pure."""

from __future__ import annotations

from agent_core.messages import SessionKey

SHARED = SessionKey("owner", "private")
"""
Its messages were said in different places, and each keeps its own as `InboundMessage.session`. No account can
have the name that stands in front.
"""
