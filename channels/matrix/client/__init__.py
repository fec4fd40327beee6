"""Requests to the homeserver and their answers, the login, and the only import of nio's client."""
