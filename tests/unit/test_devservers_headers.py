"""The submission server's verdict: nobody's own words count, and no other byte changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devservers.mailhost.faults import Fault, FaultPlan, PlannedFault
from devservers.mailhost.headers import (
    from_addresses,
    mailbox_of,
    split_message,
    with_results,
    without_results_of,
)


@pytest.mark.parametrize(
    "field",
    [
        b"Authentication-Results: mail.test; dmarc=pass\r\n",
        b"AUTHENTICATION-results:MAIL.TEST;dmarc=pass\r\n",
        b"Authentication-Results : mail.test 1; dmarc=pass\r\n",
        b"Authentication-Results:\r\n mail.test;\r\n\tdmarc=pass\r\n",
        b'Authentication-Results: "mail.test"; dmarc=pass\r\n',
        b"Authentication-Results: (a (nested) comment) mail.test; dmarc=pass\r\n",
        b"Authentication-Results: mail.test\r\n",
    ],
)
def test_forged_results_are_removed(field: bytes) -> None:
    """However it is written, a verdict in our name that came in is cut out."""
    raw = b"Subject: a\r\n" + field + b"To: b\r\n\r\n" + field

    assert without_results_of(raw, "mail.test") == b"Subject: a\r\nTo: b\r\n\r\n" + field


@pytest.mark.parametrize(
    "raw",
    [
        b"Authentication-Results: other.test; dmarc=pass\r\n\r\nx",
        b"Authentication-Results: xmail.test; a\r\nA: b\r\n\r\n",
        b"X-Authentication-Results: mail.test; dmarc=pass\r\n\r\n",
        b"Subject: a\nTo: b\n\nAuthentication-Results: mail.test; x\n",
        b"no header at all",
        b"\r\nbody only",
        b"",
    ],
)
def test_other_bytes_stay(raw: bytes) -> None:
    """Other servers' verdicts and all other bytes stay as they came."""
    assert without_results_of(raw, "mail.test") == raw


@given(st.binary(max_size=300))
def test_splitting_loses_nothing(raw: bytes) -> None:
    """Fields and rest put together are the message again."""
    fields, rest = split_message(raw)

    assert b"".join(fields) + rest == raw


def test_our_verdict_is_on_top() -> None:
    """Our own verdict is the first field."""
    assert with_results(b"A: b\r\n\r\n", "mail.test", "mail.test") == (
        b"Authentication-Results: mail.test; dmarc=pass header.from=mail.test\r\nA: b\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("raw", "authors"),
    [
        (b'From: "evil@x" <Alice@Mail.Test>\r\n\r\nFrom: c@d', ["alice@mail.test"]),
        (b"From: a@b\r\nFROM: c@d\r\n\r\n", ["a@b", "c@d"]),
        (b"From: a@b, c@d\r\n\r\n", ["a@b", "c@d"]),
        (b"Subject: none\r\n\r\n", []),
    ],
)
def test_authors(raw: bytes, authors: list[str]) -> None:
    """Every address of every From field counts, and no display name."""
    assert from_addresses(raw) == authors


def test_plus_tags_do_not_matter() -> None:
    """A tagged address belongs to the mailbox without the tag."""
    assert mailbox_of(" Bot+a+b@Mail.Test ") == "bot@mail.test"


def test_faults_are_used_up_by_their_sender() -> None:
    """A fault limited to one sender waits for that sender, as often as planned."""
    plan = FaultPlan()
    plan.add(PlannedFault(Fault.REFUSE_DATA, 2, "450 x", "a@b"))

    assert plan.take_or_none(Fault.REFUSE_DATA, "c@d") is None
    assert plan.take_or_none(Fault.REFUSE_MAIL, "a@b") is None
    assert plan.take_or_none(Fault.REFUSE_DATA, "a@b") is not None
    assert len(plan.pending()) == 1
    assert plan.take_or_none(Fault.REFUSE_DATA, "a@b") is not None
    assert plan.take_or_none(Fault.REFUSE_DATA, "a@b") is None
