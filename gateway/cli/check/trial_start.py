"""
The newer version's side of `squidbot update --check`: reads a configuration, starts on a copy of a home.

The older version starts ``python -m gateway.cli.check.trial_start REQUEST`` in a sandbox, with the newer
version's interpreter. REQUEST is a JSON file with ``config`` (None: there is none), ``home`` (None: only the
configuration is read) and ``report``, the file to write. Versions rely on these names, and on those of the
report; unknown ones are ignored by both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio

from agent_core.storage.layout import Layout
from gateway.cli.output import quiet_logs
from gateway.errors import ConfigInvalid, GatewayError
from gateway.operations.privacy.erasure_journal import check_no_move_pending
from gateway.settings import Settings, load_settings, use_timezone
from gateway.settings.effective import effective
from gateway.store.sql.tables import VERSION as SCHEMA
from gateway.store.store_errors import StoreUnusable
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home
from gateway.system.version import version

_WORKSPACE = "workspace"


def try_start(config: Path | None, home: Path | None) -> dict[str, Any]:
    """
    Read the configuration, open the queue and build the gateway as a start does, without connecting.

    Returns ``version``, ``schema``, ``settings`` (in effect, secrets masked), ``warnings``, ``invalid`` (the
    problems of the configuration, or "") and ``failed`` (why it does not start, or "").
    """
    report: dict[str, Any] = {"version": version(), "schema": SCHEMA, "invalid": "", "failed": ""}
    try:
        settings = Settings() if config is None else load_settings(config)
    except ConfigInvalid as error:
        return report | {"invalid": str(error)}
    report |= {"settings": effective(settings), "warnings": list(settings.warnings)}
    if home is None:
        return report
    # Wherever the workspace was, in the copy it is in the home.
    agents = settings.agents.model_copy(update={"workspace": _WORKSPACE})
    try:
        _start(settings.model_copy(update={"agents": agents}), home)
    except (GatewayError, StoreUnusable) as error:
        return report | {"failed": str(error)}
    except Exception as error:  # noqa: BLE001 - any of them would have stopped the daemon
        return report | {"failed": f"{type(error).__name__}: {error}"}
    return report


def _start(settings: Settings, root: Path) -> None:
    from gateway.app import build  # noqa: PLC0415 - with it comes the whole gateway

    use_timezone(settings)
    home: Home = open_home(root)

    async def built() -> None:
        gateway = await build(settings, home)
        await gateway.store.aclose()

    with hold_home(home):
        check_no_move_pending(Layout(home.root, home.path(settings.agents.workspace)))
        anyio.run(built)


def main(request: str) -> int:
    """Carry a request out; the report is in its file."""
    quiet_logs()
    given = json.loads(Path(request).read_text(encoding="utf-8"))
    config, home = (Path(given[name]) if given.get(name) else None for name in ("config", "home"))
    Path(given["report"]).write_text(json.dumps(try_start(config, home)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
