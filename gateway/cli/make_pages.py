"""``python -m gateway.cli.make_pages``: make the kept help and the man page anew, see `gateway.cli.pages`."""

from __future__ import annotations

import sys

from gateway.cli.commands import app
from gateway.cli.pages import write_pages

if __name__ == "__main__":
    for path in write_pages(app):
        sys.stdout.write(f"{path} has changed\n")
