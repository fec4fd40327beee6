"""What the process does when its start is over."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from gateway.app import daemon
from gateway.app.daemon import _settle
from gateway.cli import fast_path
from gateway.settings import load_settings


@pytest.fixture
def _garbage_as_before():
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_garbage_as_before")
async def test_garbage_is_looked_for_as_usual_once_all_channels_are_up():
    """A start looks for it rarely; a daemon must not, because a mail of 25 MB may hang in a cycle."""
    gc.set_threshold(fast_path._WHILE_STARTING)
    await _settle(SimpleNamespace(supervisor=SimpleNamespace(all_up=True)))
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() > 10_000


@pytest.mark.usefixtures("_garbage_as_before")
async def test_what_the_start_has_loaded_is_frozen_before_anybody_is_served(monkeypatch):
    """Looking through it takes 60 ms: at the end of the start that would stop whoever writes by then."""
    frozen_when_served = []

    async def serve(*_):
        frozen_when_served.append(gc.get_freeze_count())
        raise RuntimeError("enough")

    monkeypatch.setattr(daemon, "_serve", serve)
    gc.unfreeze()
    loaded = len(gc.get_objects())
    with pytest.raises(RuntimeError, match="enough"):
        await daemon._running(SimpleNamespace(), None, None, None, None)
    assert frozen_when_served[0] > 0.9 * loaded


async def test_the_owner_hears_of_a_reload_that_was_refused(tmp_path):
    """In one sentence, with the first problem; the control is a configuration that can be started with."""
    file, told = tmp_path / "squidbot.yaml", []
    file.write_text("timezone: Europe/Berlin\n")
    settings = load_settings(file)
    alerts = SimpleNamespace(alert=lambda _about, text: told.append(text))
    built = SimpleNamespace(proactive=SimpleNamespace(owner_alerts=alerts))
    ending = daemon._Ending(at_terminal=False)
    assert await daemon._may_reload(built, settings, ending) and not told
    file.write_text("timezone: Europe/Berln\nnonsense: 1\n")
    assert not await daemon._may_reload(built, settings, ending)
    first = (
        "line 1, timezone: unknown time zone 'Europe/Berln'; give a name such as Europe/Berlin, UTC or local"
    )
    [sentence] = told
    assert sentence == (
        f"I did not reload the configuration and go on with the one from before ({first}); `squidbot config check` "
        "names all that is wrong."
    )
