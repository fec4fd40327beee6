"""What is known of the mails that left."""

from __future__ import annotations

from channels.email.sent_tracker import MAX_REMEMBERED, SentTracker
from tests.clock import ManualClock


def test_a_doubt_ends_when_somebody_knows() -> None:
    """It lasts until the mail is known to be out, or not; while it lasts its age is that of its beginning."""
    clock = ManualClock()
    it = SentTracker(clock.monotonic)
    assert not it.is_uncertain("a")
    assert it.uncertain_for_s("a") == 0
    clock.advance(5)
    assert it.uncertain_for_s("a") == 5
    it.mark_uncertain("a")
    assert it.uncertain_for_s("a") == 0, "another try begins anew"
    it.note_rejection("a")
    assert not it.is_uncertain("a")
    it.mark_uncertain("a")
    it.note_delivery("a", "<a>")
    assert it.is_delivered("a")
    assert not it.is_uncertain("a")


def test_it_is_bounded_and_keeps_the_newest() -> None:
    """The oldest go; one that is named again is new."""
    it = SentTracker(ManualClock().monotonic)
    it.note_copy("first")
    it.note_copy("second")
    it.note_copy("first")
    for number in range(MAX_REMEMBERED - 1):
        it.note_copy(str(number))
    assert it.has_copy("first")
    assert not it.has_copy("second")
