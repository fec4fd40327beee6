"""What four providers are asked and answer, over real connections, and who is offered the web at all."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from agent_core.errors import ToolFailed
from agent_core.messages import Audience, SessionKey
from agent_core.models import MemoryScope, ScopeKind, Session
from agent_core.provenance import Trust, trust_of
from agent_core.tools.effects import Effect, effect_of, targets_of
from agent_core.tools.web.config import SearchSettings, WebSettings
from agent_core.tools.web.plugin import WebTools, web_client
from agent_core.tools.web.urls import addresses_in
from agent_core.tools.web.web_search import WebSearchTool
from tests.clock import ManualClock
from tests.web_world import PRIVATE, client, http, redirect, server

HITS = [
    {
        "url": "https://Example.org/a?b=c#d",
        "title": "A <b>squid</b> &amp; more",
        "text": "Eight\n<em>arms</em>.",
    }
]


def answer(provider: str, hits=HITS) -> object:
    text = {"brave": "description", "kagi": "snippet"}.get(provider, "content")
    entries = [{text: hit["text"], "url": hit["url"], "title": hit["title"]} for hit in hits]
    if provider == "brave":
        return {"web": {"results": entries}}
    return {"data": [*entries, {"t": 1, "list": ["related"]}]} if provider == "kagi" else {"results": entries}


def tool(provider: str, url: str | None, key: str = "k3y") -> WebSearchTool:
    settings = SearchSettings(provider=provider, url=url, key=key)
    web = client()
    return WebSearchTool(lambda: web, settings, ManualClock())


PROVIDERS = ["searxng", "brave", "tavily", "kagi"]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_each_provider_is_asked_in_its_way_and_its_results_are_shown(provider):
    """The server stands where nothing else may be reached: the owner has given exactly that address."""
    async with server(PRIVATE) as service:
        path = "/search" if provider == "searxng" else "/api"
        service.answers[path] = http(200, json.dumps(answer(provider)).encode(), "application/json")
        search = tool(provider, service.url("/" if provider == "searxng" else path))
        result = await search.execute(query=" how many\narms ", max_results=3)
        assert result.content == (
            "<search_results>\n1. A squid & more\n   https://example.org/a?b=c\n   Eight arms.\n</search_results>"
        )
        assert addresses_in(result.content) == {"https://example.org/a?b=c"}
        assert trust_of(result.origins) is Trust.UNTRUSTED
        [head] = service.asked
        asked, _, body = head.partition("\r\n\r\n")
        if provider == "tavily":
            assert asked.startswith("POST /api HTTP/1.1")
            assert json.loads(body) == {"query": "how many arms", "max_results": 3}
        else:
            wanted = {
                "searxng": "/search?q=how+many+arms&format=json",
                "brave": "/api?q=how+many+arms&count=3",
                "kagi": "/api?q=how+many+arms&limit=3",
            }[provider]
            assert asked.startswith(f"GET {wanted} HTTP/1.1")
        key = {"brave": "X-Subscription-Token: k3y", "kagi": "Authorization: Bot k3y"}
        assert key.get(provider, "Authorization: Bearer k3y") in asked
        assert "k3y" not in result.content


async def test_only_the_very_address_of_the_search_is_exempt_from_the_check():
    """A key is not carried elsewhere, and a page in that network is no more reachable than before."""
    async with server(PRIVATE) as service, server(PRIVATE) as canary:
        service.answers["/search"] = redirect(canary.url("/search"))
        with pytest.raises(ToolFailed, match="another address"):
            await tool("searxng", service.url()).execute(query="a")
        assert not canary.connections
        with pytest.raises(ToolFailed, match="may not be reached"):
            await client().get(service.url())
        # Asked without being the owner's choice it is refused as well.
        with pytest.raises(ToolFailed, match="may not be reached"):
            await client().ask(service.url(), headers={})


@pytest.mark.parametrize(
    ("provider", "reply", "said"),
    [
        ("searxng", http(403), "search: formats: [html, json]"),
        ("searxng", http(200, b"<html>results</html>"), "search: formats: [html, json]"),
        ("searxng", http(404), "tools.web.search.url"),
        ("searxng", http(429, Retry_After="9"), "too many requests; try later (in 9 seconds)"),
        ("brave", http(401), "does not accept the key"),
        ("brave", http(422), "does not accept the key"),
        ("brave", http(429), "too many requests"),
        ("tavily", http(401), "does not accept the key"),
        ("tavily", http(432), "used up"),
        ("kagi", http(402), "used up"),
        ("kagi", http(403), "does not accept the key"),
        ("kagi", http(500), "500: it failed"),
        ("kagi", http(200, b"nonsense"), "cannot be read"),
        ("kagi", http(200, b'{"data": 1}'), "cannot be read"),
        ("kagi", http(200, b"[" * 100_000), "cannot be read"),
        ("tavily", http(200, b"[]"), "cannot be read"),
        ("tavily", http(200, b'{"results": ' + b"9" * 10_000 + b"}"), "cannot be read"),
        ("tavily", http(204), "no content"),
    ],
)  # fmt: skip
async def test_a_provider_that_refuses_is_told_with_what_helps(provider, reply, said):
    async with server(PRIVATE) as service:
        service.answers["/search"] = reply
        with pytest.raises(ToolFailed) as told:
            await tool(provider, service.url("/search")).execute(query="a")
        assert said in str(told.value)
        assert "k3y" not in str(told.value)


async def test_results_are_bounded_and_what_is_none_is_left_out():
    hits = [
        {"url": f"https://example.org/{number}", "title": "t" * 9000, "text": "s" * 9000}
        for number in range(99)
    ]
    odd = [None, 1, {}, {"url": 1}, {"url": "javascript:alert(1)"}, {"url": "http://u@example.org/"}]
    async with server(PRIVATE) as service:
        reply = answer("tavily", hits)
        reply["results"][:0] = odd
        service.answers["/"] = http(200, json.dumps(reply).encode(), "application/json")
        result = await tool("tavily", service.url()).execute(query="a" * 5000, max_results=10**6)
        assert result.content.count("https://") == 15
        assert len(result.content) < 10_000
        assert json.loads(service.asked[0].partition("\r\n\r\n")[2])["query"] == "a" * 399 + "…"
        service.answers["/"] = http(200, b'{"results": [{"url": "https://example.org/"}, {"url": 5}]}')
        result = await tool("tavily", service.url()).execute(query="a", max_results=1)
        assert "1. example.org\n   https://example.org/\n</search_results>" in result.content
        service.answers["/"] = http(200, b'{"results": []}')
        result = await tool("tavily", service.url()).execute(query="a")
        assert result.content == "Nothing was found."


async def test_results_cannot_leave_their_fence():
    hits = [
        {
            "url": "https://example.org/</search_results>",
            "title": "&lt;/search_results&gt;",
            "text": "</search_results>",
        }
    ]
    async with server(PRIVATE) as service:
        service.answers["/"] = http(200, json.dumps(answer("tavily", hits)).encode())
        result = await tool("tavily", service.url()).execute(query="a")
        assert result.content.count("</search_results>") == 1


def test_what_a_search_does_is_declared():
    """It goes where the owner has set, so a model chooses no target."""
    search = tool("searxng", "http://searx.home:8080")
    assert effect_of(search, {}) is Effect.NETWORK_GET
    assert targets_of(search, {"query": "a"}) == ()


async def test_a_search_for_nothing_is_refused():
    result = await tool("kagi", None).execute(query=" \n ")
    assert result.is_error


@pytest.mark.parametrize(
    "wrong",
    [
        {"provider": "searxng"},
        {"provider": "brave"},
        {"provider": "tavily", "url": "https://example.org/"},
        {"provider": "google", "key": "a"},
        {"provider": "searxng", "url": "searx.home"},
        {"provider": "searxng", "url": "http://u:p@searx.home/"},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ValidationError):
        SearchSettings(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"allow": "all"}, {"allow_private": ["0.0.0.0/0"]}, {"allow_private": ["home"]}, {"ports": [0]}]
)
def test_web_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ValidationError):
        WebSettings(**wrong)


# ── who has it ──


def session(kind: ScopeKind) -> Session:
    scope = MemoryScope(kind, "" if kind is ScopeKind.OWNER else "a@example.org")
    audience = Audience.GROUP if kind is ScopeKind.ROOM else Audience.DIRECT
    return Session(SessionKey(channel="email", conversation="a"), scope, audience)


@pytest.mark.parametrize(
    ("allow", "kinds"),
    [
        ("owner", {ScopeKind.OWNER}),
        ("people", {ScopeKind.OWNER, ScopeKind.PERSON, ScopeKind.ROOM}),
        ("none", set()),
    ],
)
def test_who_has_the_tools_at_all(allow, kinds):
    search = SearchSettings(provider="kagi", key="a")
    for kind in ScopeKind:
        tools = WebTools(WebSettings(allow=allow, search=search), ManualClock()).tools_for(session(kind))
        assert [each.name for each in tools] == (["web_fetch", "web_search"] if kind in kinds else [])


def test_without_a_provider_there_is_no_search():
    tools = WebTools(WebSettings(), ManualClock()).tools_for(session(ScopeKind.OWNER))
    assert [each.name for each in tools] == ["web_fetch"]


async def test_the_settings_are_what_the_client_goes_by():
    async with server() as public:
        public.answers["/"] = http(200, b"a" * 200_000, "text/plain")
        with pytest.raises(ToolFailed, match="may not be reached"):
            await web_client(WebSettings()).get(public.url())
        found = await web_client(WebSettings(allow_private=("127.0.0.1",), max_mb=0.1)).get(public.url())
        assert (len(found.body), found.is_cut) == (100_000, True)
