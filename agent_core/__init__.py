"""The agent: turns, models, tools, memory. It knows no channel and no gateway."""
