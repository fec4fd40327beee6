"""Which messages are part of the one conversation that all private ones of the owner are."""

from __future__ import annotations

from typing import Any

import pytest

from agent_core.messages import Sender
from gateway.routing.access import Access, Alias
from gateway.routing.conversations import Conversations
from gateway.store.shared import SHARED
from tests.contract.queue_data import message

ANN = "@ann:hs.test"


@pytest.mark.parametrize(
    ("more", "belongs"),
    [
        ({"sender": Sender(address=ANN, verified=True)}, True),
        ({"sender": Sender(address=ANN, verified=False)}, False),
        # Let in out of quarantine: it counts as verified, and nobody has proved it.
        ({"sender": Sender(address=ANN, verified=True), "context": {"notes": {"admitted": True}}}, False),
    ],
)
def test_only_what_the_owner_has_said_with_a_proven_address(more: dict[str, Any], belongs: bool) -> None:
    given = message("a", **more)
    of = Conversations(Access([Alias("matrix", ANN)], {}), shared=True).conversation_for(given)
    assert (of == SHARED) is belongs
    assert Conversations(Access([Alias("matrix", ANN)], {})).conversation_for(given) == given.session
