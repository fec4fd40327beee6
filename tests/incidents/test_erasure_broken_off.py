"""A `squidbot forget` was broken off, and nobody heard of it any more: the daemon and the check did not mention it."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from agent_core.storage.layout import Layout
from gateway.app.daemon import log_interrupted_erasures
from gateway.cli.check.all_checks import check_data
from gateway.operations.privacy.person_erasure import forget_person
from gateway.settings import load_settings
from gateway.system.home import Home
from tests.integration.test_forget_broken_off import folder_in_the_way, places
from tests.integration.test_person_data import NOW, bob, planted


def warned(home):
    with capture_logs() as logs:
        log_interrupted_erasures(load_settings(home.config_file), home)
    return [line["event"] for line in logs]


async def test_it_is_told_until_it_is_done(tmp_path):
    """The check fails and names the command; the daemon logs it at each start; afterwards both are silent."""
    filled = await planted(tmp_path / "home")
    root = filled.home.root
    home, layout = Home(root), Layout(root, root / "workspace")
    before = check_data(home, home.config_file)
    assert "forget" not in before.as_text() and warned(home) == []
    step = places(root)["the room's history"]
    with folder_in_the_way(step), pytest.raises(OSError):
        forget_person(layout, home.database, bob(), now=NOW)
    told = check_data(home, home.config_file)
    assert told.exit_code == 1
    assert "squidbot forget @bob:hs.test" in told.as_text()
    assert warned(home) == ["erasure.unfinished"]
    forget_person(layout, home.database, bob(), now=NOW)
    assert "squidbot forget" not in check_data(home, home.config_file).as_text()
    assert warned(home) == []
