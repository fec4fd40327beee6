"""Stand-ins for what the product talks to or is made of, which nobody ships for. Contract tests hold them to the ports."""
