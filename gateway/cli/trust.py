"""The commands ``squidbot trust …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where, ask
from gateway.cli.output import print_result

trust = App(
    name="trust",
    help="Say that what somebody else may have written counts as your own words.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)


@trust.command(name="file")
def trust_file(path: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Let what a file holds now count as the owner's own words, until it changes.

    Args:
        path: The file, named as the assistant names it.
    """
    from gateway.system.terminal_text import plain_line

    answer = ask(where, "files_trust", path=path)
    content = f"{answer['bytes']} bytes, SHA-256 {answer['sha256']}"
    told = f"{answer['path']} as it is now ({content}) counts as your own words"
    print_result(as_json, answer, plain_line(told))
    return 0
