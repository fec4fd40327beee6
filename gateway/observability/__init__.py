"""Logs and metrics of a running gateway, and what is kept out of both."""
