"""The endpoint's settings, and that nothing of it is loaded where it is off."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.errors import ConfigInvalid
from gateway.settings import load_settings

HTTP = "gateway: {http: {listen: '127.0.0.1:8811'}}\n"


def load(tmp_path, text):
    file = tmp_path / "squidbot.yaml"
    file.write_text(f"owner: {{aliases: ['@a:hs.test']}}\n{text}")
    file.chmod(0o600)
    return load_settings(file)


def test_two_words_switch_it_on(tmp_path):
    settings = load(tmp_path, f"{HTTP}channels: {{api: {{}}}}\n")
    assert settings.channels.kinds() == {"api": "api"}
    assert settings.warnings == ()


def test_without_an_address_nobody_reaches_it(tmp_path):
    [warning] = load(tmp_path, "channels: {api: {}}\n").warnings
    assert warning == "channels.api: nobody can reach it; set gateway.http.listen"


@pytest.mark.parametrize("part", ["allow_from: ['bob@example.org']", "batching: merge", "listen: x"])
def test_what_has_no_use_is_refused(tmp_path, part):
    with pytest.raises(ConfigInvalid, match=part.partition(":")[0]):
        load(tmp_path, f"{HTTP}channels: {{api: {{{part}}}}}\n")


def test_where_it_is_off_nothing_of_it_is_loaded():
    """The settings know its name and its keys."""
    program = (
        "import sys, gateway.settings; print([one for one in sys.modules if one.startswith('channels.api.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert sorted(eval(done.stdout)) == ["channels.api.config", "channels.api.plugin"]
