"""The tool ``shell`` and its settings: runs a command in a sandbox that was tested first."""
