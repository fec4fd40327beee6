"""Kept for one release, because compose files of before name it: `gateway.operations.control.healthcheck`."""

from __future__ import annotations

import sys

from gateway.operations.control.healthcheck import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
