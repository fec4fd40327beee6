"""How a plugin declares what an operator can request of it, and what `squidbot init` asks for it."""

from agent_core.operation import Operation, Option, operation, operations_of
from channels.setup import (
    Dialogue,
    SecretLine,
    SetupAnswer,
    SetupFailed,
    SetupForm,
    SetupLogin,
    SetupRefused,
    SetupServices,
)

__all__ = [
    "Dialogue",
    "Operation",
    "Option",
    "SecretLine",
    "SetupAnswer",
    "SetupFailed",
    "SetupForm",
    "SetupLogin",
    "SetupRefused",
    "SetupServices",
    "operation",
    "operations_of",
]
