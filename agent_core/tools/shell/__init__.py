"""The tool ``shell``: runs a command in a sandbox that was proved, and its settings."""
