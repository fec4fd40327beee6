"""The durable queue: every accepted message, every turn, every answer. `port` is the contract."""
