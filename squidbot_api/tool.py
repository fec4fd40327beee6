"""What a family of tools is made of."""

from agent_core.errors import ToolDenied, ToolFailed, ToolRetry
from agent_core.models import Session, ToolResult
from agent_core.ports import ToolPort
from agent_core.provenance import Origin, Origins, untrusted_origin
from agent_core.tools.effects import Effect, Review
from agent_core.tools.family import FamilyConfig, ToolFamily, ToolServices, ToolSource

__all__ = [
    "Effect",
    "FamilyConfig",
    "Origin",
    "Origins",
    "Review",
    "Session",
    "ToolDenied",
    "ToolFailed",
    "ToolFamily",
    "ToolPort",
    "ToolResult",
    "ToolRetry",
    "ToolServices",
    "ToolSource",
    "untrusted_origin",
]
