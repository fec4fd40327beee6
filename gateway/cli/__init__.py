"""
The command line: `main` is the command ``squidbot``. Each command loads only what it needs when it is called,
so that asking for help costs nothing, and the daemon does without cyclopts (`fast_path`). What goes wrong is
said in one sentence on stderr, with an exit code from sysexits.h; a traceback means a defect.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.fast_path import read

if TYPE_CHECKING:
    from cyclopts import App

__all__ = ["main"]

_STDERR = 2
_SHOWN = 60


def main() -> None:
    """Run the command line and exit."""
    os.umask(0o077)
    _open_standard_streams()
    # Looking for plugins, pydantic reads what every installed package says of itself, and runs what it finds.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # aiohttp keeps a few callbacks in these lists; the extension alone needs the C++ library, which is 1 MB.
    os.environ.setdefault("FROZENLIST_NO_EXTENSIONS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # People write what not every terminal can show.
            stream.reconfigure(errors="backslashreplace")
    _read_help_of_a_command()
    try:
        if sys.argv[1:] in ([], ["help"], ["--help"], ["-h"]):
            # Made beforehand (`gateway.cli.manual`): the help of all commands takes longer than any of them.
            sys.stdout.write(Path(__file__).with_name("overview.txt").read_text(encoding="utf-8"))
            code: object = 0
        elif command := read(sys.argv[1:]):
            code = command()
        else:
            from gateway.cli.commands import add_kind, app  # noqa: PLC0415 - importing gateway.cli costs nothing

            if not sys.argv[1].startswith("-") and sys.argv[1] not in app:
                add_kind(sys.argv[1:])

            if {"--help", "-h"} & set(sys.argv):
                from gateway.cli.manual import add_examples  # noqa: PLC0415

                add_examples(app)
            code = _call(app) if sys.argv[1] in app else _print_unknown(sys.argv[1])
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # Whoever read our output has left, which is no error; nothing may be flushed into the pipe any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except Exception as error:  # noqa: BLE001 - what is a defect is raised again
        code = _print_error(error)
    # At its end Python would look through all that was imported for garbage: a fifth of most commands' time.
    gc.freeze()
    sys.exit(code if isinstance(code, int) else 0)


def _read_help_of_a_command() -> None:
    """Read ``help WORD …`` as ``WORD … --help``."""
    if sys.argv[1:2] == ["help"] and len(sys.argv) > 2:
        sys.argv[1:] = [*sys.argv[2:], "--help"]


def _call(app: App) -> object:
    """Run a command; one that is mistyped is told in one sentence on stderr."""
    from cyclopts import CycloptsError  # noqa: PLC0415 - the daemon does without

    try:
        return app(print_error=False, exit_on_error=False)
    except CycloptsError as error:
        from gateway.cli.usage_errors import usage_sentence  # noqa: PLC0415
        from gateway.system.terminal_text import plain_text  # noqa: PLC0415

        sys.stderr.write(f"squidbot: {plain_text(usage_sentence(error))}\n")
        return 2


def _print_unknown(word: str) -> int:
    """Say on stderr that a first word is no command, and which may be meant; returns the exit code."""
    from gateway.cli.manual import no_such_command  # noqa: PLC0415
    from gateway.system.terminal_text import plain_text  # noqa: PLC0415

    sys.stderr.write(f"squidbot: {plain_text(no_such_command(word[:_SHOWN]))}\n")
    return 2


def _print_error(error: Exception) -> int:
    """Say in one sentence on stderr what went wrong; returns the exit code. Raises what is a defect."""
    from gateway.errors import describe  # noqa: PLC0415
    from gateway.system.terminal_text import plain_text  # noqa: PLC0415

    told = describe(error)
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        name = str(error.filename or "")
        sentence = f"{name if len(name) <= _SHOWN else f'{name[:_SHOWN]}…'}: {error.strerror}"
        code = 2  # wrong usage: somebody has named what no file system can have
    elif told.fields["error"] != type(error).__name__ or not hasattr(error, "public"):
        raise error
    else:
        sentence, code = str(error), getattr(error, "exit_code", 75 if told.temporary else 74)
    sys.stderr.write(f"squidbot: {plain_text(sentence)}\n")
    return code


def _open_standard_streams() -> None:
    """
    Open /dev/null for standard streams that the caller closed (``>&-``).

    Otherwise the next file would get such a number, and text on stderr would be written into the database.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", encoding="utf-8", closefd=False)
