"""The table that decides about calls: what is declared and whose words were read, and nothing a model says."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

from agent_core.models import ToolCall
from agent_core.provenance import Origins, Trust, join_origins, person, untrusted_origin
from agent_core.tools.effects import Effect
from agent_core.tools.policy import (
    DEFAULT_POLICY,
    HARMLESS,
    PolicyVerdict,
    Proposal,
    is_mentioned,
    is_named,
    is_said,
    is_written_as_code,
    verdict_on,
)
from tests.rows import rows

CALL = ToolCall(id="1", name="tool")
PAGE = (untrusted_origin("web", "https://evil.example"),)
GUEST = (person("@bob:example.org"),)


def proposal(
    effect: Effect, origins: Origins = (), *, named: bool = False, guarded: bool = False
) -> Proposal:
    return Proposal(CALL, effect, origins, named=named, guarded=guarded)


def test_every_effect_has_a_row_that_only_becomes_stricter() -> None:
    """Less trust never allows more; a table with a hole would."""
    order = list(PolicyVerdict)
    for effect in Effect:
        row = [order.index(verdict) for _, verdict in sorted(DEFAULT_POLICY[effect].items())]
        assert len(row) == len(set(Trust) - {Trust.ATTACHED}), effect
        assert row == sorted(row), effect


def test_what_a_person_has_attached_is_theirs_in_notes_alone() -> None:
    """Whatever else may be done counts it as anybody's; after a page besides, notes are asked about as well."""
    file = (untrusted_origin("attachment", "cat.png"),)
    for effect in Effect:
        assert verdict_on(proposal(effect, file)) is verdict_on(proposal(effect, PAGE)), effect
    note = replace(proposal(Effect.PERSIST, file), is_note=True)
    assert verdict_on(note) is PolicyVerdict.ALLOW
    assert verdict_on(replace(note, origins=join_origins(file, PAGE))) is PolicyVerdict.ASK
    pictures = [untrusted_origin("attachment", f"{number}.png") for number in range(20)]
    assert verdict_on(replace(note, origins=join_origins(pictures, PAGE))) is PolicyVerdict.ASK
    assert verdict_on(note, {Effect.PERSIST: {Trust.KNOWN: PolicyVerdict.DENY}}) is PolicyVerdict.DENY


def test_nothing_but_reading_passes_unasked_after_something_untrusted_was_read() -> None:
    """Whatever the effect; the control is the owner's own idea, most of which passes."""
    after_page = {effect: verdict_on(proposal(effect, PAGE)) for effect in Effect}
    assert {effect for effect, verdict in after_page.items() if verdict is PolicyVerdict.ALLOW} == HARMLESS
    own = {effect for effect in Effect if verdict_on(proposal(effect)) is PolicyVerdict.ALLOW}
    assert own == set(Effect) - {Effect.SEND}


def test_a_target_that_the_owner_has_named_is_the_owners_idea() -> None:
    """To write to bob is one, whatever was read; to run a program or to note something for ever never is."""
    passes = {
        effect for effect in Effect if verdict_on(proposal(effect, PAGE, named=True)) is PolicyVerdict.ALLOW
    }
    assert passes - HARMLESS == {Effect.SEND, Effect.NETWORK_GET, Effect.WRITE_WORKSPACE}


@rows(
    ("text", "message", "said"),
    [
        ("Call mum", "Remind me at 18:00 to call mum!", True),
        ("18:00", "at 18:00", True),
        ("9:00", "at 09:00", True),
        ("19:00", "at 18:00", False),
        ("The bin is *out*.", "note that the bin is out", True),
        ("call", "recalled", False),
        ("call mum now", "call mum, and now dad", False),
        ("mum call", "call mum", False),
        ("…", "call … mum", False),
        ("", "call mum", False),
    ],
)
def test_words_that_somebody_has_said(text: str, message: str, said: bool) -> None:
    """One after another, whole; how they are written does not count."""
    assert is_said(text, message) is said


@rows(
    ("command", "message", "written"),
    [
        ("wc -l a.md", "run `wc -l a.md`, please", True),
        ("wc -l a.md", "run\n```sh\nwc -l a.md\n```", True),
        ("cd x\nls", "```\ncd x\nls\n```", True),
        ("ls", "```\ncd x\nls\n```", False),
        ("wc -l a.md", "run wc -l a.md", False),
        ("wc -l", "run `wc -l a.md`", False),
        ("a.md", "run `wc -l a.md`", False),
        ("or", "`ls` or `id`", False),
        ("WC -l a.md", "`wc -l a.md`", False),
        ("", "``", False),
        ("ls;rm -r a", "`ls`ls;rm -r a`id`", False),
        ("a` ls `b", "not `a` ls `b`", False),
        ("rm -r a", "```\nls\n```\nrm -r a\n```\nid\n```", False),
        ("ls", "```\nid\n```\nor `ls`", True),
        ("ls", "```ls```", True),
        ("ls", "```\nls", False),
    ],
)
def test_a_command_that_somebody_has_written(command: str, message: str, written: bool) -> None:
    """Between backticks, all of it: a part of a command can do the opposite."""
    assert is_written_as_code(command, message) is written


def test_a_denied_row_denies_whatever_is_named() -> None:
    """A setting that forbids is not talked around."""
    none = {Effect.SEND: dict.fromkeys(Trust, PolicyVerdict.DENY)}
    for trusted, named, guarded in itertools.product([(), PAGE], [True, False], [True, False]):
        asked = proposal(Effect.SEND, trusted, named=named, guarded=guarded)
        assert verdict_on(asked, none) is PolicyVerdict.DENY


def test_what_always_needs_a_yes_needs_it_from_the_owner_too() -> None:
    """``tools.require_approval`` is stricter than the table, and never more lenient."""
    for effect in Effect:
        assert verdict_on(proposal(effect, guarded=True)) is not PolicyVerdict.ALLOW
    lenient = {Effect.EXECUTE: {Trust.UNTRUSTED: PolicyVerdict.ALLOW}}
    assert verdict_on(proposal(Effect.EXECUTE, PAGE), lenient) is PolicyVerdict.ALLOW
    assert (
        verdict_on(proposal(Effect.EXECUTE, GUEST), lenient) is PolicyVerdict.ASK
    )  # the rest is the default's


@rows(
    ("target", "text", "found"),
    [
        ("bob@example.org", "Please write to Bob@Example.org.", True),
        ("bob@example.org", "<bob@example.org>", True),
        ("bob@example.org", "notbob@example.org", False),
        ("bob@example.org", "x.bob@example.org", False),
        ("bob@example.org", "bob@example.organic", False),
        ("bob@example.org", "bob@example.org.evil.net", False),
        ("https://example.org/a", "see https://example.org/a, please", True),
        ("https://example.org/a?d=secret", "see https://example.org/a", False),
        ("https://example.org/a", "see https://example.org/a?d=1", False),
        ("https://example.org/a", "see https://example.org/abc", False),
        ("notes.md", "write it to notes.md", True),
        ("notes.md", "write it to old/notes.md", False),
        ("brien@example.org", "write to o'brien@example.org", False),
        ("brien@example.org", "write to 'brien@example.org'", True),
        ("Notes.md", "write it to notes.md", False),  # another file
        ("@Bob:example.org", "tell @bob:example.org", False),  # another person
        ("notes.md", "see notes.md, and more", True),
        ("cafe", "cafe\u0301", False),
        ("notes.m", "see notes.m,d", False),
        ("", "anything", False),
        (" ", " ", False),
    ],
)
def test_a_name_counts_as_a_whole(target: str, text: str, found: bool) -> None:
    """What only holds the beginning or the end of it names something else."""
    assert is_named(target, [text]) is found


@rows(
    ("target", "text", "found"),
    [
        ("bob@example.org", "**BOB @ example.org**", True),
        ("notes/new.md", "./notes//new\u200b.md", True),
        ("café.md", "cafe\u0301.md", True),
        ("notes/new.md", "notes/newer.md", False),
        ("bob@example.org", "rob@example.org", False),
        ("/-/", "anything", True),
    ],
)
def test_a_stranger_mentions_it_however_it_is_written(target: str, text: str, found: bool) -> None:
    """Here a mistake costs a question, and not the owner's say."""
    assert is_mentioned(target, [text]) is found


def test_a_name_is_looked_for_in_linear_time() -> None:
    """A megabyte that begins like the target at every place holds nothing up."""
    began = time.process_time()
    assert not is_named("a" * 50 + "b@example.org", ["a" * 1_000_000])
    assert not is_named("a@", ["a@" * 500_000 + "x"])
    assert not is_mentioned("a" * 50 + "b@example.org", ["a" * 1_000_000])
    assert not is_mentioned("a@b", ["a@" * 500_000 + "x"])
    assert time.process_time() - began < 10
