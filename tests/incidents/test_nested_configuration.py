"""A configuration that is nested deeply ended in exit 1, which a service manager restarts on, instead of 78."""

from __future__ import annotations

import pytest
import yaml

from agent_core.errors import SkillInvalid
from agent_core.skills.skill_document import parse_skill
from gateway.errors import ConfigInvalid
from gateway.settings import load_settings
from tests.command_line import squidbot


@pytest.mark.parametrize("depth", [60, 400, 20_000])
@pytest.mark.parametrize("form", ["[", "{a: ", "- ", "? "])
def test_it_is_refused_in_words(tmp_path, depth, form):
    """Whatever the depth and the form: the same kind of error as any other mistake in the file."""
    path = tmp_path / "squidbot.yaml"
    path.write_text(
        f"owner: {form * depth}"[:999_000] if form in "[{a: " else f"owner:\n  {form * depth}"[:999_000]
    )
    with pytest.raises(ConfigInvalid):
        load_settings(path)


def test_so_much_is_fine(tmp_path):
    """The control: a file that is nested as far as settings are."""
    path = tmp_path / "squidbot.yaml"
    path.write_text("gateway: {log: {level: info}}\n")
    load_settings(path)


@pytest.mark.parametrize("command", [["run"], ["config", "check"]])
def test_the_exit_code_is_that_of_a_configuration(tmp_path, command):
    """A service manager does not restart on 78."""
    (tmp_path / "squidbot.yaml").write_text("owner: " + "[" * 3000)
    done = squidbot(tmp_path, *command)
    assert done.returncode == 78, done.stderr
    assert "nested" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("bracket", ["[", "{a: "])
def test_the_head_of_a_skill(bracket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its YAML is not looked at: four kilobytes of brackets took two seconds at each message; a few are nothing."""
    looked = []
    load = yaml.load
    monkeypatch.setattr(yaml, "load", lambda text, loader: (looked.append(text), load(text, loader))[1])

    with pytest.raises(SkillInvalid, match="too deeply"):
        parse_skill(b"---\n" + bracket.encode() * 900 + b"\n---\nbody")
    assert not looked

    head = "name: good\ndescription: d\nrequires: {bins: [a, b], env: [C]}\n"
    assert parse_skill(f"---\n{head}---\nbody".encode()).bins == ("a", "b")
    assert looked


def test_the_head_of_a_skill_has_a_size() -> None:
    """What is longer than a few kilobytes is refused in a plain sentence, whatever it holds."""
    with pytest.raises(SkillInvalid, match="front matter is longer than 8192 characters"):
        parse_skill(b"---\n" + b"a: b\n" * 2000 + b"---\nbody")
