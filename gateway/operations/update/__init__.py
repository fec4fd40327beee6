"""Tries a newer version of squidbot that is at hand, before it is installed."""
