"""
``squidbot run`` whose engines of speech live in environments of their own, because they are large: what the extras
``listen`` and ``speak`` install is there, in other Pythons (`speech_engines`).

``SQUIDBOT_TEST_LISTENS`` and ``SQUIDBOT_TEST_SPEAKS`` name those.
"""

from __future__ import annotations

import os
import sys

from agent_core.voice import local_speech, local_transcription
from gateway.cli import main


def within(variable, child, engine):
    """The engine with its process in another Python; the weights are those of the settings."""
    python = os.environ[variable]

    def made(settings, clock):
        return engine(settings, clock, command=(python, "-m", f"agent_core.voice.{child}", settings.model))

    return made


if __name__ == "__main__":
    local_transcription.missing = lambda: ""
    local_transcription.LocalTranscription = within(
        "SQUIDBOT_TEST_LISTENS", "transcription_child", local_transcription.LocalTranscription
    )
    local_speech.LocalSpeech = within("SQUIDBOT_TEST_SPEAKS", "speech_child", local_speech.LocalSpeech)
    sys.exit(main())
