"""``squidbot run`` that sweeps its attachments all the time instead of every few hours."""

from __future__ import annotations

import sys

from gateway.cli import main
from gateway.routing import attachment_retention

if __name__ == "__main__":
    attachment_retention._FIRST_AFTER_S = 0.1
    attachment_retention._EVERY_S = 0.2
    attachment_retention._AGAIN_S = 0.1
    sys.exit(main())
