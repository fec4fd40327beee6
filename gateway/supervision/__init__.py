"""Keeping the gateway running: channels restarted, turns watched, liveness told to the service manager."""
