"""Moves a home from one engine to the other."""
