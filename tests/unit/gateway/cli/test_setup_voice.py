"""`squidbot init` offers voice where the provider is known for it, and what it writes works."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import yaml

from agent_core.llm import providers
from channels.setup import SetupFailed, SetupRefused
from devservers.speech import SpeechServer
from devservers.transcription import TranscriptionServer
from gateway.cli.check.check_report import CheckReport, FindingLevel
from gateway.cli.check.voice_checks import check_listening, check_speaking
from gateway.cli.setup.config_lines import Answers, VoiceAnswers
from gateway.cli.setup.config_writer import plan, read_existing, write_setup
from gateway.cli.setup.dialogue import UnattendedDialogue
from gateway.cli.setup.model_probe import ModelOffer
from gateway.cli.setup.options import Given, parse_options
from gateway.cli.setup.owner_questions import ask_voice
from gateway.settings import Settings
from gateway.system.clock import SystemClock
from tests.unit.gateway.cli.test_setup import squidbot

OPENAI = ModelOffer("openai/gpt-5-mini", "openai", api_key="k4n4ry")
GROQ = ModelOffer("groq/llama-3.3-70b-versatile", "groq", api_key="k")
BOTH = VoiceAnswers("openai", "openai/whisper-1", "groq/spoken-by-the-stand-in")


_NO_CHANNEL = ("--no-matrix", "--no-email")


class Asked(UnattendedDialogue):
    """A person who takes the options of these numbers, what they were shown and what they were told."""

    interactive = True

    def __init__(self, *takes: int) -> None:
        self.takes = list(takes)
        self.shown: list[list[str]] = []

    def choose(self, question, options, default=0):
        self.shown.append(list(options))
        return self.takes.pop(0)


@pytest.fixture
def servers(monkeypatch) -> Iterator[tuple[TranscriptionServer, SpeechServer]]:
    """Both stand-ins, at the providers' own addresses; what speaks has that of another provider."""
    with TranscriptionServer() as ears, SpeechServer() as mouth:
        for name, server in (("openai", ears), ("groq", mouth)):
            there = providers._PROVIDERS[name]
            moved = dataclasses.replace(
                there, server=dataclasses.replace(there.server, api_base=server.api_base)
            )
            monkeypatch.setitem(providers._PROVIDERS, name, moved)
        yield ears, mouth


@pytest.mark.parametrize(
    ("offer", "options"),
    [
        (OPENAI, 3),
        (GROQ, 2),
        (ModelOffer("openai/tiny", "server", "http://127.0.0.1:1/v1", "k"), 0),
        (ModelOffer("anthropic/claude-sonnet-4-5", "anthropic", api_key="k"), 0),
        (ModelOffer("demo/demo"), 0),
    ],
)
def test_it_is_offered_where_the_provider_is_known_to_do_it(offer, options):
    """Once, and off unless it is wished for; a server of one's own may have neither."""
    person = Asked(0)
    assert ask_voice(Given(), Settings(), person, chosen=offer) is None
    assert [len(each) for each in person.shown] == ([options] if options else [])
    assert ask_voice(Given(), Settings(), UnattendedDialogue(), chosen=offer) is None


def test_nothing_is_asked_twice():
    """What is configured stays, and what an option says is not asked."""
    there = {"transcribe": {"provider": "local", "model": "/w"}}
    person = Asked(2)
    for given, settings in (
        (Given(), Settings.model_validate({"voice": there})),
        (Given(voice="no"), Settings()),
    ):
        assert ask_voice(given, settings, person, chosen=OPENAI) is None
    listens = ask_voice(Given(voice="listen"), Settings(), person, chosen=OPENAI)
    assert listens == VoiceAnswers("openai", "openai/whisper-1")
    assert person.shown == []
    for given, offer in (("answer", GROQ), ("listen", ModelOffer("demo/demo"))):
        with pytest.raises(SetupFailed, match=f"--voice {given}"):
            ask_voice(Given(voice=given), Settings(), person, chosen=offer)
    with pytest.raises(SetupRefused, match="--voice is no, listen or answer"):
        parse_options({"voice": "loud"}, {})


async def test_what_is_written_works(servers, tmp_path):
    """`check` is content with it, and a second time nothing changes."""
    ears, mouth = servers
    path = tmp_path / "squidbot.yaml"
    answers = Answers(("@me:hs.test",), OPENAI, BOTH)
    settings, _ = write_setup(plan(read_existing(path, {}), answers, {}), {})
    assert yaml.safe_load(path.read_text())["voice"] == {
        "transcribe": {"provider": "openai", "model": BOTH.listens},
        "speak": {"provider": "openai", "model": BOTH.speaks},
    }
    report = CheckReport()
    built = SimpleNamespace(clock=SystemClock(), models=SimpleNamespace(litellm=None))
    await check_listening(report, settings, built)
    await check_speaking(report, settings, built)
    assert [finding.verdict for finding in report.findings] == [FindingLevel.OK] * 2
    assert (sum(ears.asked.values()), len(mouth.asked)) == (1, 1)
    assert not plan(read_existing(path, {}), answers, {}).lacks


def test_the_command_asks_once_and_writes_it(tmp_path):
    """Typed by a person, it stands in the file; where nobody can, that is said and nothing is written."""
    one, two = tmp_path / "one", tmp_path / "two"
    first = squidbot(one, *_NO_CHANNEL, "--no-probe", types="UTC\n1\n2\ny\nn\n", OPENAI_API_KEY="k4n4ry")
    assert first.returncode == 0, first.stderr + first.stdout
    assert first.stdout.count("Should squidbot understand voice messages?") == 1
    assert "docs/voice.md" not in first.stdout.partition("Next:")[2]
    assert yaml.safe_load((one / "squidbot.yaml").read_text())["voice"] == {
        "transcribe": {"provider": "openai", "model": "openai/whisper-1"}
    }
    refused = squidbot(two, *_NO_CHANNEL, "--yes", "--model", "demo", "--voice", "listen")
    assert refused.returncode == 1
    assert "--voice listen: squidbot knows no voice model" in refused.stderr
    assert not two.exists()
