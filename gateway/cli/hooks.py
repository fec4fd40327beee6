"""The command ``squidbot hooks test``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import sys
from pathlib import Path

from cyclopts import App, Parameter

from gateway.cli.command_context import HERE, Where

hooks = App(
    name="hooks",
    help="Webhooks.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)

_LIMIT_S = 30.0
_SAMPLE = b'{"title": "A test", "message": "from squidbot hooks test"}'


@hooks.command(name="test")
def hooks_test(name: str, /, *, file: Path | None = None, where: Where = HERE) -> int:
    """
    Call a webhook of the running daemon as its program would, signed with its secret.

    Args:
        name: The webhook: its key under gateway.http.hooks.
        file: What to send (default: a short JSON object).
    """
    import urllib.error
    import urllib.request

    from gateway.errors import ConfigInvalid
    from gateway.operations.http.hook_routes import PATH, headers_of
    from gateway.settings import load_settings
    from gateway.system.home import Home, find_home
    from gateway.system.terminal_text import plain_line

    http = load_settings(where.config_path or Home(find_home(where.home)).config_file).gateway.http
    if http is None or name not in http.hooks:
        known = ", ".join(http.hooks) if http is not None and http.hooks else "none"
        raise ConfigInvalid(f"there is no webhook {name!r} under gateway.http.hooks; configured: {known}")
    body = _SAMPLE if file is None else file.read_bytes()
    address = f"http://{http.listen}{PATH}{name}"
    request = urllib.request.Request(address, body, headers_of(http.hooks[name], body))
    try:
        with urllib.request.urlopen(request, timeout=_LIMIT_S) as answer:  # noqa: S310 - of this machine
            status, said = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, said = error.code, error.read()
    except OSError as error:
        print(f"squidbot: {address} cannot be reached: {error}; does the daemon run?", file=sys.stderr)
        return 1
    print(plain_line(f"{status} {said.decode(errors='replace')}"))
    return 0 if status == 202 else 1
