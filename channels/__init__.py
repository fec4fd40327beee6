"""The part that carries: one package per place where people talk. It knows only agent_core.messages."""
