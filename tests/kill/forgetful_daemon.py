"""``squidbot run`` that does not look at what it has heard before: the control of the test of voice messages."""

from __future__ import annotations

import sys

from gateway.__main__ import main
from gateway.turns.listening import Listening

if __name__ == "__main__":
    _hear = Listening.hear

    async def hear(self, turn, asked, steps, meter):
        return await _hear(self, turn, asked, (), meter)

    Listening.hear = hear
    sys.exit(main())
