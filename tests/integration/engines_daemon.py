"""
``squidbot run`` whose engines of speech live in environments of their own, because they are large: what the extras
``listen`` and ``speak`` install is there, in other Pythons (`speech_engines`).

``SQUIDBOT_TEST_LISTENS`` and ``SQUIDBOT_TEST_SPEAKS`` name those.
"""

from __future__ import annotations

import os
import sys

from agent_core.media import local_engines
from gateway.cli import main


def within(variable, name, engine):
    """The engine with its process in another Python; the weights are those of the settings."""
    python = os.environ[variable]

    def made(settings, clock):
        one = engine(settings, clock)
        one.process.command = list(local_engines.engine_command(name, settings.model, python=python))
        return one

    return made


if __name__ == "__main__":
    local_engines.LocalTranscription = within(
        "SQUIDBOT_TEST_LISTENS", "whisper", local_engines.LocalTranscription
    )
    local_engines.LocalSpeech = within("SQUIDBOT_TEST_SPEAKS", "piper", local_engines.LocalSpeech)
    sys.exit(main())
