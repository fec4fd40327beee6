"""Credentials for mail servers: passwords, OAuth tokens, TLS."""
