"""
The web tools: read a page (`fetch`), ask a search provider (`search`). `urls` and `ip_rules` decide what may
be reached, and `page` what can be read of it; all three are pure. `client` is the only part that connects,
and every connection of it is checked at the moment it is made.
"""
