"""
``python -m gateway.cli.make_pages``: regenerates the files that are made from the code: the help (see
`gateway.cli.manual`) and the example configuration.
"""

from __future__ import annotations

import sys

from gateway.cli.commands import app
from gateway.cli.manual import write_overview
from gateway.settings.example import EXAMPLE, write_example

if __name__ == "__main__":
    changed = write_overview(app) + ([EXAMPLE] if write_example() else [])
    for path in changed:
        sys.stdout.write(f"{path} has changed\n")
