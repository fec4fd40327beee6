"""
The tools of MCP servers: programs on this machine, or addresses, that the owner has configured. `definitions`
says what a server offers and whether the owner has seen it; `names` what a model calls it; `connection` is
the one task that talks to a server; `sdk_client` is the only part that knows the SDK, and nothing of it is
imported before a server is needed.
"""
