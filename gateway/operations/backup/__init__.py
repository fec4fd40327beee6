"""Copies of everything that is kept, made while the daemon runs, and taken back."""
