"""An older copy of the database is recognised, told once in the log and for a week by the check."""

from __future__ import annotations

import stat
from datetime import timedelta

import pytest
import structlog

from gateway.errors import ConfigInvalid
from gateway.store.rollback_guard import (
    Extent,
    Gap,
    HighWaterMark,
    RollbackGuard,
    older_copy,
    read_high_water_mark,
    warning_of,
)
from tests.clock import EPOCH, ManualClock

NOW = Extent.from_counts("secret", 100, 90)


class TestOlderCopy:
    @pytest.mark.parametrize(
        "extent",
        [
            NOW,
            Extent.from_counts("secret", 101, 90),
            Extent.from_counts("secret", 100, 91),
            Extent.from_counts("secret", 500, 0),
        ],
    )
    def test_what_goes_on_is_no_older_copy(self, extent):
        """As many messages as noted or more, whatever the answers."""
        assert older_copy(HighWaterMark(NOW, EPOCH), extent) is None
        assert older_copy(None, extent) is None

    def test_fewer_messages_than_noted_are_told_with_what_follows(self):
        """When it had how many, and that people may be answered twice."""
        told = older_copy(HighWaterMark(NOW, EPOCH), Extent.from_counts("secret", 60, 90))
        assert told is not None
        assert "older copy" in told
        assert f"{EPOCH:%Y-%m-%d %H:%M} UTC it had 100 messages, now it has 60" in told
        assert "answered once more" in told
        assert "`squidbot restored`" in told and "`squidbot restore`" in told

    def test_another_database_is_told_even_if_it_has_more(self):
        """One that was begun anew, or came from elsewhere."""
        told = older_copy(HighWaterMark(NOW, EPOCH), Extent.from_counts("other", 4000, 1))
        assert told is not None
        assert "another one than before" in told

    def test_a_new_one_in_the_place_of_one_that_is_gone_promises_nothing(self):
        """Nothing is fetched again then, because no position is known: so it is not said either."""
        told = older_copy(HighWaterMark(NOW, EPOCH), Extent.from_counts("other", 0, 0))
        assert told is not None
        assert "is gone" in told
        assert "not answered any more" in told
        assert "once more" not in told

    def test_the_mark_holds_no_secret(self):
        """The identity is a hash."""
        assert "secret" not in NOW.identity


class TestKeeper:
    async def test_an_older_copy_is_told_once_and_remembered_for_a_week(self, tmp_path):
        """In the log at the start that finds it; by the check for seven days; not at the next start."""
        path, clock = tmp_path / "mark.json", ManualClock()
        extents = [NOW]

        async def extent():
            return extents[0]

        def keeper():
            return RollbackGuard(path, extent, clock)

        assert await keeper().check() is None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        extents[0] = Extent.from_counts("secret", 60, 50)
        clock.advance(60)
        with structlog.testing.capture_logs() as logs:
            assert "older copy" in (await keeper().check() or "")
        assert [line["event"] for line in logs] == ["rollback_guard.older_copy_found"]
        again = keeper()
        assert await again.check() is None
        extents[0] = Extent.from_counts("secret", 61, 50)
        await again.note()
        found = read_high_water_mark(path)
        assert found is not None
        assert found.extent.inbox == 61
        assert "older copy" in (warning_of(path, clock.now()) or "")
        assert warning_of(path, clock.now() + timedelta(days=8)) is None

    async def test_an_older_copy_is_refused_and_the_mark_stays(self, tmp_path):
        """As often as it is tried; the same database, a newer one and an empty one are not refused."""
        path, extents = tmp_path / "mark.json", [NOW]

        async def extent():
            return extents[-1]

        def keeper():
            return RollbackGuard(path, extent, ManualClock())

        assert await keeper().check(refuses=True) is None
        for one in (
            Extent.from_counts("secret", 60, 50),
            Extent.from_counts("secret", 99, 90),
            Extent.from_counts("other", 400, 1),
        ):
            extents.append(one)
            with pytest.raises(ConfigInvalid, match="restored") as caught:
                await keeper().check(refuses=True)
            assert caught.value.exit_code == 78
        for one in (NOW, Extent.from_counts("secret", 101, 0)):
            extents.append(one)
            assert await keeper().check(refuses=True) is None
        extents.append(Extent.from_counts("new", 0, 0))
        assert "is gone" in (await keeper().check(refuses=True) or "")

    async def test_a_mark_that_is_missing_or_damaged_says_nothing(self, tmp_path):
        """It is a hint, and is made anew."""
        path = tmp_path / "mark.json"

        async def extent():
            return NOW

        for content in (None, b"", b"{}", b"\xff\xfe"):
            if content is not None:
                path.write_bytes(content)
            assert read_high_water_mark(path) is None
            assert warning_of(path, EPOCH) is None
            assert await RollbackGuard(path, extent, ManualClock()).check() is None
            assert read_high_water_mark(path) is not None

    async def test_a_disk_that_takes_no_mark_stops_nothing(self, tmp_path):
        """Then merely less is noticed."""

        async def extent():
            return NOW

        assert await RollbackGuard(tmp_path / "no" / "mark.json", extent, ManualClock()).check() is None


def test_all_until_the_loss_may_have_been_answered():
    """Also what was sent before the backup and fetched only after it: a mail has its date in whole seconds."""
    gap = Gap(EPOCH, EPOCH + timedelta(hours=1))
    assert gap.covers(EPOCH - timedelta(seconds=0.5))
    assert gap.covers(EPOCH + timedelta(hours=1))
    assert not gap.covers(EPOCH + timedelta(hours=1, seconds=1))
