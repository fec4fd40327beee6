"""Backups: made while the daemon runs, and restored."""
