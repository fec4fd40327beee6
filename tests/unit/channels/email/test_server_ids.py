"""What servers say about the Message-IDs that they set."""

from __future__ import annotations

import pytest

from channels.email.server_ids import ServerIds, message_id_in_reply
from tests.doubles.inbox import MemoryInbox

OWN = f"<squidbot.{'a' * 24}.{'b' * 24}@mail.test>"
OTHER = f"<squidbot.{'c' * 24}.{'b' * 24}@mail.test>"


@pytest.mark.parametrize(
    ("reply", "host", "given"),
    [
        (
            "Ok 0102018c7d3f1c2a-0c5f0f6e-000000",
            "email-smtp.eu-west-1.amazonaws.com",
            "<0102018c7d3f1c2a-0c5f0f6e-000000@eu-west-1.amazonses.com>",
        ),
        (
            "Ok 0100018c7d3f1c2a-0c5f0f6e-000000",
            "email-smtp.us-east-1.amazonaws.com",
            "<0100018c7d3f1c2a-0c5f0f6e-000000@email.amazonses.com>",
        ),
        (
            "2.6.0 <AM0PR01@AM0.eurprd01.prod.outlook.com> [InternalId=17, Hostname=AM0] Queued mail for delivery",
            "smtp.office365.com",
            "<AM0PR01@AM0.eurprd01.prod.outlook.com>",
        ),
        ("2.0.0 Ok: queued as 4XYZ", "mail.example.org", None),
        ("Ok 0102018c7d3f1c2a-0c5f0f6e-000000", "email-smtp.evil.example", None),
        ("OK id=1rX-0004-2b <x@y>", "mail.example.org", None),
    ],
)
def test_the_reply_to_data(reply: str, host: str, given: str | None) -> None:
    assert message_id_in_reply(reply, host) == given


async def test_the_first_word_counts_and_outlives_the_process() -> None:
    """Whoever got a mail of ours may send a copy of it that says anything."""
    inbox, ids = MemoryInbox(), ServerIds("bot@mail.test")
    ids.learn("<1@ses>", OWN)
    ids.learn("<1@ses>", OTHER)
    ids.learn(OWN, OTHER)
    ids.learn(None, OWN)
    assert await ids.translate_references(inbox, ["<q@p>", "<1@ses>"]) == {"<1@ses>": OWN}
    await inbox.accept([], await ids.to_commit(inbox))
    again = ServerIds("bot@mail.test")
    again.learn("<1@ses>", OTHER)
    assert await again.to_commit(inbox) == {}
    again.note_commit(["<1@ses>"])
    assert await again.translate_references(inbox, ["<1@ses>"]) == {"<1@ses>": OWN}
    assert await again.translate_references(inbox, [OTHER, "<1@ses>"]) == {}, "our own id needs no table"
    assert await again.translate_references(inbox, ["<2@ses>"]) == {}
