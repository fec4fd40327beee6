"""The socket by which the command line talks to the daemon."""
