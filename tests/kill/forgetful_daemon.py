"""``squidbot run`` that does not look at what it has heard before: the control of the test of voice messages."""

from __future__ import annotations

import sys

from gateway.cli import main
from gateway.turns.transcription import Transcription

if __name__ == "__main__":
    _hear = Transcription.transcribe_turn

    async def hear(self, turn, asked, steps, meter):
        return await _hear(self, turn, asked, (), meter)

    Transcription.transcribe_turn = hear
    sys.exit(main())
