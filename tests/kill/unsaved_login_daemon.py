"""``squidbot run`` that uses a renewed token without storing it first: its next process has the old one."""

from __future__ import annotations

import sys

from agent_core.oauth import TokenStore
from gateway.cli import main

if __name__ == "__main__":
    TokenStore.renew = lambda _self, _old, new: new
    sys.exit(main())
