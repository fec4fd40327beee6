"""Requests to the homeserver: the one place that imports nio, login, and its answers."""
