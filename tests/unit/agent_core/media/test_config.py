"""The section ``voice`` of the configuration."""

import pytest

from gateway.errors import ConfigInvalid
from gateway.settings import load_settings

_OTHERS = """
llm:
  providers: {home: {api_base: "http://127.0.0.1:1/v1"}, other: {api_key: k}}
  models: {demo: {model: demo/demo}}
  pools: {main: [demo]}
"""


def _load(tmp_path, voice):
    path = tmp_path / "squidbot.yaml"
    path.write_text(_OTHERS + voice)
    path.chmod(0o600)
    return load_settings(path, environ={})


def test_nothing_is_transcribed_unless_it_is_asked_for(tmp_path):
    """Without the section, sound files stay files."""
    assert _load(tmp_path, "").voice.transcribe is None


@pytest.mark.parametrize("provider", ["home", "local"])
def test_a_provider_that_there_is(tmp_path, provider):
    """A provider of models, or the engine on this machine."""
    settings = _load(tmp_path, f"voice: {{transcribe: {{provider: {provider}, model: openai/whisper-1}}}}")

    assert settings.voice.transcribe is not None
    assert settings.voice.transcribe.provider == provider


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{provider: hme, model: openai/whisper-1}", "did you mean 'home'?"),
        ("{provider: home}", "voice.transcribe.model"),
        ("{provider: local, model: /w, client: litellm}", "leave it out with provider: local"),
        ("{provider: other, model: deepgram/nova-3, client: openai}", "needs the server's address"),
        ("{provider: home, model: openai/whisper-1, language: English}", "voice.transcribe.language"),
    ],
)
def test_what_cannot_work_is_said_with_its_key(tmp_path, given, said):
    """A slip is told when the configuration is read, not with the first voice message."""
    with pytest.raises(ConfigInvalid) as raised:
        _load(tmp_path, f"voice: {{transcribe: {given}}}")

    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("name", "given", "warned"),
    [
        ("transcribe", "{provider: home, model: openai/whisper-1}", True),
        ("transcribe", "{provider: home, model: openai/whisper-1, usd_per_minute: 0}", False),
        ("transcribe", "{provider: other, model: openai/whisper-1}", False),
        ("transcribe", "{provider: other, model: openai/nobody-knows-it}", True),
        ("transcribe", "{provider: local, model: /w}", False),
        ("speak", "{provider: home, model: openai/tts-1}", True),
        ("speak", "{provider: home, model: openai/tts-1, usd_per_million_chars: 0}", False),
        ("speak", "{provider: other, model: openai/tts-1}", False),
        ("speak", "{provider: other, model: openai/gpt-4o-mini-tts}", True),
        ("speak", "{provider: local, model: /w}", False),
    ],
)
def test_a_price_that_nobody_knows_is_told_where_money_is_limited(tmp_path, name, given, warned):
    """The budget in dollars would not count it."""
    path = tmp_path / "squidbot.yaml"
    budget = _OTHERS.rstrip() + "\n  budget: {usd_per_day: 1.0}\n"
    path.write_text(f"{budget}voice: {{{name}: {given}}}")
    path.chmod(0o600)
    warnings = load_settings(path, environ={}).warnings

    assert any(f"voice.{name}: no price" in text for text in warnings) is warned
