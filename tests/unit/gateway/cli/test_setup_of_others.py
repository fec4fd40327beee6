"""`squidbot init` asks for a kind of channel of another package as its form says, and names what to write."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import gateway.plugins
from channels.plugin import AccountConfig, AddressRules, ChannelPlugin
from channels.setup import Dialogue, SecretLine, SetupAnswer, SetupFailed, SetupForm, SetupServices
from gateway.cli.setup.dialogue import Terminal
from gateway.cli.setup.options import Given
from gateway.cli.setup.wizard import Init
from gateway.system.home import Home

CONFIG = "plugins: {enabled: [pigeon]}\n"


class PigeonConfig(AccountConfig):
    ring: str
    key: str = ""


class Rings(AddressRules):
    example = "ring-7"

    def parse(self, text: str) -> str | None:
        return text if text.startswith("ring-") else None


class Login:
    def __init__(self) -> None:
        self.kept: list[Path] = []
        self.discarded = 0

    def keep(self, state: Path) -> None:
        self.kept.append(state)

    def discard(self) -> None:
        self.discarded += 1


class PigeonForm(SetupForm[PigeonConfig]):
    kind = "pigeon"
    question = "Connect it to pigeons?"
    owner_question = "Your own ring"
    address_flag = "--pigeon-ring"

    def __init__(self, login: Login) -> None:
        self.login = login

    def log_in(
        self, given: Any, current: PigeonConfig | None, dialogue: Dialogue, services: SetupServices
    ) -> SetupAnswer:
        ring = dialogue.ask("  Its ring", check=self.check_address)
        settings = {"ring": ring, "key": SecretLine("pigeon-key", "k4n4ry")}
        return SetupAnswer(settings=settings, address=ring, login=self.login)

    def check_address(self, text: str) -> str:
        if Rings().parse(text) is None:
            raise ValueError(f"{text!r} is no ring")
        return text


class PigeonPlugin(ChannelPlugin[PigeonConfig]):
    kind = "pigeon"
    config = PigeonConfig
    addresses = Rings()
    address_key = "ring"

    def __init__(self, login: Login) -> None:
        self.login = login

    def build(self, config: PigeonConfig, services: Any) -> Any:
        raise NotImplementedError

    def setup(self) -> PigeonForm:
        return PigeonForm(self.login)


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Login:
    made = Login()
    monkeypatch.setitem(gateway.plugins._channels, "pigeon", PigeonPlugin(made))
    return made


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, typed: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    config = folder / "squidbot.yaml"
    config.write_text(CONFIG)
    given = Given(matrix=False, email=False, model="demo", hello=False, timezone="UTC")
    Init(given, Home(folder), config, Terminal(), {}).run()


def test_its_questions_become_lines_to_write(login, tmp_path, monkeypatch, capsys) -> None:
    """The secret in its file; the login is given back, as the configuration does not have the account yet."""
    run(monkeypatch, tmp_path, "y\nfinch\nring-1\nring-9\ny\nn\n")
    said = capsys.readouterr().out
    assert "Connect it to pigeons? [Y/n]" in said
    assert "'finch' is no ring" in said
    assert "Your own ring (you are the owner; empty: nobody is)" in said
    lines = said.partition("Put this into")[2]
    for line in ("aliases: [", "ring-9", "pigeon:", "ring-1", "${secret:pigeon-key}"):
        assert line in lines
    assert (tmp_path / "secrets" / "pigeon-key").read_text() == "k4n4ry\n"
    assert (tmp_path / "squidbot.yaml").read_text() == CONFIG
    assert (login.kept, login.discarded) == ([], 1)


def test_who_does_not_want_it_is_asked_no_more(login, tmp_path, monkeypatch, capsys) -> None:
    """The control."""
    run(monkeypatch, tmp_path, "n\ny\nn\n")
    assert "pigeon" not in capsys.readouterr().out.partition("Put this into")[2]
    assert (login.kept, login.discarded) == ([], 0)


def test_a_login_is_given_back_if_a_later_step_fails(login, tmp_path, monkeypatch) -> None:
    """The person goes away at the next question."""
    with pytest.raises(Exception, match="nothing was written") as ended:
        run(monkeypatch, tmp_path, "y\nring-1\n")
    assert not isinstance(ended.value, SetupFailed)
    assert login.discarded == 1
