"""
Tools of MCP servers: programs of this machine, or addresses, that the owner has named.

`definitions` says what a server offers and whether the owner has seen it; `names` what a model calls it;
`connection` is the one task that talks to a server; `sdk_client` is the only part that knows the SDK, and
nothing of it is imported before a server is needed.
"""
