"""The durable queue: every accepted message, every turn, every answer. `ports` is the contract."""
