"""
Of the sources of a text the twelve newest are kept. A page that had a model read twelve others once more was not among
them any more: a grant after words of these twelve covered a call that may have been its idea, and a question that
named twelve sources seemed to name all.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from agent_core.models import ToolCall
from agent_core.provenance import KEPT, arriving, describe, join_origins, untrusted_origin
from agent_core.tools.effects import Effect
from agent_core.tools.grants import Grant, covers, scope_of
from agent_core.tools.policy import Proposal
from tests.clock import EPOCH

HOUR = timedelta(hours=1)
PAGES = tuple(untrusted_origin("web", f"https://a.example/{number}", EPOCH) for number in range(KEPT))
EVIL = untrusted_origin("web", "https://evil.example/", EPOCH + timedelta(minutes=1))


@pytest.mark.parametrize(("count", "covered"), [(KEPT - 1, True), (KEPT, False)])
def test_a_grant_is_not_for_what_may_have_more_sources_than_are_known(count: int, covered: bool) -> None:
    """The control is one source less, of which nothing can have been left out."""
    call = ToolCall(id="c", name="shell", arguments={"command": "make"})
    asked = Proposal(call, Effect.EXECUTE, PAGES[:count], ("make",))
    scope = scope_of(Proposal(call, Effect.EXECUTE, (), ("make",)))
    assert scope is not None and (scope_of(asked) == scope) is covered
    grant = Grant("g1", scope, "here", ("ann",), "ann", EPOCH, EPOCH + HOUR, origins=asked.origins)
    again = arriving(PAGES[:count], EPOCH + timedelta(minutes=2))
    crowded = join_origins(PAGES[:count], (EVIL,), again)
    assert (EVIL in crowded) is covered  # so the first ones were left out of nothing, or EVIL was
    later = Proposal(call, Effect.EXECUTE, again if covered else crowded, ("make",))
    assert covers(grant, later, conversation="here", people=["ann"], turn="t", now=EPOCH) is covered


def test_what_may_be_left_out_is_said() -> None:
    """Whether the rest is told or not; the control is a list that is whole."""
    assert describe(PAGES, most=KEPT).endswith("January and perhaps others")
    assert describe(PAGES).endswith(f" and at least {KEPT - 3} more")
    assert describe(PAGES[:-1], most=KEPT).endswith("January")
    assert describe(PAGES[:4]).endswith(" and 1 more")
