"""``squidbot run`` with a defect: a request's Idempotency-Key says nothing, so that each repetition is a new message."""

from __future__ import annotations

import secrets
import sys

from channels.api import api_server
from gateway.cli import main

if __name__ == "__main__":
    api_server._key_of = lambda _request: secrets.token_hex(16)
    sys.exit(main())
