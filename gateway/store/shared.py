"""The session of all private conversations of the owner, if the settings merge them. Pure."""

from __future__ import annotations

from agent_core.messages import SessionKey

SHARED = SessionKey("owner", "private")
"""
The session of the shared conversation. Its messages were written in different places, and each keeps its own
as `InboundMessage.session`. No account can be named like the channel of this key.
"""
