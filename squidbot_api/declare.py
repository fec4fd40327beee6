"""How a plugin declares what an operator can request of it."""

from agent_core.operation import Operation, Option, operation, operations_of

__all__ = ["Operation", "Option", "operation", "operations_of"]
