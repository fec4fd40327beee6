"""Converts Matrix events into messages and back. Pure."""
