"""The fast path reads `run` and `status` as the whole command line does, or leaves them to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.command_context import Where
from gateway.cli.commands import app
from gateway.cli.fast_path import read

_WORDS = (
    "run", "status", "--home", "--home=/h", "--home=", "--home=-x", "--config", "--config=c.yaml", "--verbose",
    "--verbose=no", "-v", "--json", "-j", "--watch", "--hom", "--role", "--role=all", "--", "-", "", "/h", "~/h", "c.yaml", "@file", "a=b",
)  # fmt: skip


def by_cyclopts(arguments):
    """The command and what it is given, as the whole command line reads it; None if it refuses."""
    try:
        command, bound, *_ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    except Exception:
        return None
    where = bound.arguments.get("where", Where())
    more = {name: value for name, value in bound.arguments.items() if name != "where"}
    return command.__name__, {"home": where.home, "config": where.config, "verbose": where.verbose, **more}


def by_fast_path(arguments):
    """The same of the fast path; None if it leaves them to the other."""
    command = read(arguments)
    if command is None:
        return None
    return command.func.__name__, {"home": None, "config": None, "verbose": False, **command.keywords}


@given(st.sampled_from(["run", "status"]), st.lists(st.sampled_from(_WORDS), max_size=5))
def test_what_the_fast_path_reads_the_whole_command_line_reads_alike(command, words):
    """Nothing is understood differently, and no mistake is accepted."""
    ours = by_fast_path([command, *words])
    assert ours is None or ours == by_cyclopts([command, *words])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run", ("run", {})),
        ("run --home /h --config=c.yaml -v", ("run", {"home": "/h", "config": "c.yaml", "verbose": True})),
        ("status", ("status", {})),
        ("status --json --verbose", ("status", {"as_json": True, "verbose": True})),
        ("status --home=/h --config c.yaml", ("status", {"home": "/h", "config": "c.yaml"})),
    ],
)
def test_plain_spellings_are_read(line, expected):
    """Those of service files and scripts; what both make of them is the same."""
    name, values = expected
    values = {key: Path(value) if isinstance(value, str) else value for key, value in values.items()}
    assert by_fast_path(line.split()) == (name, {"home": None, "config": None, "verbose": False, **values})
    assert by_cyclopts(line.split()) == by_fast_path(line.split())


@pytest.mark.parametrize(
    "line",
    [
        "", "--home /h run", "run --json", "run --home", "run --home --verbose", "run --home a --home b", "run /h",
        "run --help", "run --role all", "status --watch", "status -v --verbose", "inbox list", "run --verbose=true",
    ],
)  # fmt: skip
def test_everything_else_is_left_to_the_whole_command_line(line):
    """So it is there that mistakes are explained and help is given."""
    assert read(line.split()) is None


@pytest.mark.parametrize("line", ["run --role worker", "run --role=accounts", "run --role all"])
def test_no_process_has_a_role(line):
    """A service file of an earlier version is refused, instead of having a second daemon begin."""
    assert read(line.split()) is None
    assert by_cyclopts(line.split()) is None
