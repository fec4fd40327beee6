"""
Asks whether squidbot understands voice messages and answers by voice, with the provider that was chosen.

It is asked where that provider is known to do so, and once: what is configured stays.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import anyio

from agent_core.errors import AgentError
from agent_core.llm.config import LLMSpec, ProviderSpec
from agent_core.llm.litellm.process import LiteLLMProcess
from agent_core.voice.config import SpeakSettings, TranscribeSettings
from gateway.cli.check.voice import have_spoken, listen_once
from gateway.cli.setup.config_changes import VoiceAnswers
from gateway.cli.setup.dialogue import Dialogue
from gateway.cli.setup.matrix_questions import InitFailed
from gateway.cli.setup.model_probe import ModelOffer
from gateway.cli.setup.options import Given
from gateway.cli.setup.owner_questions import configured_model
from gateway.settings import Settings
from gateway.system.clock import SystemClock

_KNOWN: Mapping[str, tuple[str, str]] = {
    "openai": ("openai/whisper-1", "openai/tts-1"),
    "groq": ("groq/whisper-large-v3-turbo", ""),
}
"""What listens and what speaks, by the prefix of a model: those with a known price that need nothing else."""


def voice_of(offer: ModelOffer | None) -> VoiceAnswers | None:
    """What the provider of a model offers for voice; None: nothing is known. Pure."""
    if offer is None or offer.api_base or not offer.provider:
        return None
    known = _KNOWN.get(offer.model.partition("/")[0])
    return None if known is None else VoiceAnswers(offer.provider, *known)


def ask_voice(
    given: Given, settings: Settings, dialogue: Dialogue, *, chosen: ModelOffer | None
) -> VoiceAnswers | None:
    """
    The models that transcribe and speak from now on; None: nothing changes.

    Args:
        chosen: The model that answers from now on; None: the configured one.

    Raises:
        InitFailed: The provider cannot what an option says, or it does not work. A person is asked again.
    """
    model = chosen or configured_model(settings)
    can = voice_of(model)
    configured = settings.voice.transcribe or settings.voice.speak
    if given.voice == "no" or (configured and given.voice is None):
        return None
    if can is None or (given.voice == "answer" and not can.speaks):
        if given.voice is None:
            return None
        raise InitFailed(
            f"--voice {given.voice}: squidbot knows no voice model of this provider; see docs/voice.md"
        )
    if given.voice:
        wished = VoiceAnswers(can.provider, can.listens, can.speaks if given.voice == "answer" else "")
        if wrong := _problem(wished, given, model, dialogue):
            raise InitFailed(f"{wrong}\nNothing was written. --no-probe accepts it anyway.")
        return wished
    picked = _chosen(can, dialogue)
    while picked and (wrong := _problem(picked, given, model, dialogue)):
        dialogue.say(f"  {wrong}")
        picked = _chosen(can, dialogue)
    return picked


def _chosen(can: VoiceAnswers, dialogue: Dialogue) -> VoiceAnswers | None:
    wishes: list[tuple[str, VoiceAnswers | None]] = [
        ("no, they stay files", None),
        (f"yes ({can.listens} turns them into text)", VoiceAnswers(can.provider, can.listens)),
    ]
    if can.speaks:
        wishes.append((f"yes, and answer them by text and by voice ({can.speaks} speaks)", can))
    if dialogue.interactive:
        dialogue.say("Should squidbot understand voice messages?")
    return wishes[dialogue.choose("  Number", [text for text, _ in wishes])][1]


def _problem(wished: VoiceAnswers, given: Given, model: ModelOffer | None, dialogue: Dialogue) -> str:
    """What is wrong with it, if it is to be tried; empty if nothing is."""
    if not given.probe or model is None:
        return ""
    dialogue.say(f"  trying {' and '.join(filter(None, (wished.listens, wished.speaks)))} …")
    return anyio.run(functools.partial(_prove, wished, model.api_key))


async def _prove(wished: VoiceAnswers, key: str) -> str:
    """Have a second of silence heard, and a word spoken. Returns what is wrong; empty if nothing is."""
    spec = LLMSpec(providers={wished.provider: ProviderSpec.model_validate({"api_key": key})})
    of = {"provider": wished.provider}
    clock, litellm = SystemClock(), LiteLLMProcess()
    part = "voice messages are not understood"
    try:
        listens = TranscribeSettings.model_validate({**of, "model": wished.listens})
        await listen_once(listens, spec, clock, litellm=litellm)
        if wished.speaks:
            part = "answers are not spoken"
            speaks = SpeakSettings.model_validate({**of, "model": wished.speaks})
            await have_spoken(speaks, spec, clock, litellm=litellm)
    except (AgentError, TimeoutError) as error:
        return f"{part}: {str(error) or 'no answer'}"
    finally:
        with anyio.move_on_after(5, shield=True):
            await litellm.aclose()
    return ""
