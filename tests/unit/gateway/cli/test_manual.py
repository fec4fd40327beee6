"""Help and completion: made of the commands, complete, current, and quick."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess

import pytest

from gateway.cli.commands import app
from gateway.cli.manual import EXAMPLES, OVERVIEW, add_examples, commands, overview
from tests.command_fork import run_command

STALE = "the commands have changed: run python -m gateway.cli.make_pages"


def squidbot(*arguments):
    return run_command(*arguments, env=os.environ)


def test_the_overview_is_that_of_the_commands():
    """The kept file, which `squidbot --help` prints, is what would be made now; a command that is gone is none."""
    assert OVERVIEW.read_text(encoding="utf-8") == overview(app), STALE
    done = squidbot("--help")
    assert (done.returncode, done.stdout) == (0, OVERVIEW.read_text(encoding="utf-8"))
    assert "man" not in commands(app)
    assert squidbot("man").returncode == 2


def test_every_command_has_an_example_that_can_be_read():
    """None is missing, none is of a command that is gone, and each is understood with its options."""
    add_examples(app)
    assert sorted(EXAMPLES) == sorted(commands(app))
    for words, example in EXAMPLES.items():
        line = shlex.split(example.partition(" | ")[0].partition(" > ")[0])
        assert line[0] == "squidbot"
        assert " ".join(line[1:]).startswith(words)
        app.parse_args(line[1:], exit_on_error=False, print_error=False)
        assert f"Example: {example}" in (commands(app)[words].help_epilogue or "")


def test_every_option_is_explained_and_defaults_are_shown_where_they_say_something(capsys):
    """
    What a command says of its arguments is read as such; the width of the terminal alone breaks lines. A default that
    is a number or a word is shown; that an option is not given by itself is not, in no command.
    """
    add_examples(app)
    shown = set()
    for words, sub in commands(app).items():
        for one in sub.assemble_argument_collection(parse_docstring=True):
            if one.names[0] == "*":
                continue  # what all commands take, option by option
            assert one.parameter.help, f"{words} {one.names[0]}"
            assert "\n" not in one.parameter.help, f"{words} {one.names[0]}"
        paragraphs = sub.help.partition("Args:")[0].strip().split("\n\n")
        assert [each for each in paragraphs if "\n" in each] == []
        app([*words.split(), "--help"], result_action="return_value")
        told = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "Args:" not in told
        shown.update(re.findall(r"\[default: (.*?)\]", told))
    assert {"7d", "50", "main", "day"} <= shown
    assert not {"", '""', "False", "None"} & shown


def test_a_second_name_is_the_same_command():
    """`squidbot doctor` is `squidbot check`; it is named in the overview and has no page of its own."""
    assert app["doctor"] is app["check"]
    assert "doctor" not in commands(app)
    assert "check (doctor)" in overview(app)
    assert squidbot("doctor", "--repair").stderr == squidbot("check", "--repair").stderr != ""


def test_an_example_that_is_wrong_is_noticed():
    """The control: an option that does not exist is not understood."""
    from cyclopts import CycloptsError

    with pytest.raises(CycloptsError):
        app.parse_args(["backup", "x", "--kept", "3"], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(shell, tmp_path):
    """Each shell gets a script that knows commands and options, valid where that shell is there."""
    done = squidbot("completion", shell)
    assert done.returncode == 0
    for word in ("backup", "forget", "with-secrets", "quarantine"):
        assert word in done.stdout
    if shutil.which(shell):
        (tmp_path / "script").write_text(done.stdout)
        assert subprocess.run([shell, "-n", str(tmp_path / "script")], check=False).returncode == 0
