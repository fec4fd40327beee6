"""The narrow waist: keys that read back, names that are safe for files, messages that survive a journal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import PurePosixPath

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_core.messages import (
    Attachment,
    Audience,
    FileTranscript,
    InboundMessage,
    JobNote,
    LineNote,
    MessageContext,
    MessageNotes,
    OutboundKind,
    OutboundMessage,
    Sender,
    SessionKey,
    Speech,
)

# Everything that str can hold, lone surrogates and NUL included, and more often what is dangerous.
dangerous = st.sampled_from(
    [
        "/",
        "..",
        ".",
        "\0",
        "=",
        "=.",
        "=~",
        "%",
        "%2f",
        "=2e",
        "~",
        "-",
        " ",
        "\n",
        "\ud800",
        "Ä",
        "𝄞",
        "a",
        "A",
        "#",
    ]
)
texts = st.one_of(
    st.text(st.characters(exclude_categories=()), min_size=1), st.lists(dangerous, min_size=1).map("".join)
)
keys = st.builds(SessionKey, texts, texts, st.none() | texts)
plain = st.text()
senders = st.builds(Sender, address=plain, name=plain, verified=st.booleans())
attachments = st.builds(
    Attachment, name=plain, media_type=plain, size_bytes=st.integers(0, 2**40), path=plain
)
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.datetimes(timezones=offsets)
routes = st.dictionaries(
    plain,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | plain,
        lambda inner: st.lists(inner) | st.dictionaries(plain, inner),
        max_leaves=5,
    ),
    max_size=3,
)
contexts = st.builds(MessageContext, route=routes)
inbound = st.builds(
    InboundMessage,
    channel=plain,
    account=plain,
    native_id=plain,
    session=keys,
    sender=senders,
    text=plain,
    received_at=times,
    audience=st.sampled_from(Audience),
    addressed=st.booleans(),
    kind=st.sampled_from(["message", "tick"]),
    attachments=st.lists(attachments, max_size=2).map(tuple),
    context=contexts,
)
outbound = st.builds(
    OutboundMessage,
    id=plain,
    channel=plain,
    account=plain,
    session=keys,
    text=plain,
    created_at=times,
    kind=st.sampled_from(OutboundKind),
    attachments=st.lists(attachments, max_size=2).map(tuple),
    context=contexts,
)


class TestSessionKey:
    @given(key=keys)
    @example(SessionKey("matrix", "!room:hs.test", "$event"))
    @example(SessionKey("a", "b/c"))
    @example(SessionKey("a", "b", "c"))
    @example(SessionKey("a", "%2f"))
    def test_text_reads_back(self, key):
        """`parse` is the inverse of ``str``, for every key."""
        assert SessionKey.parse(str(key)) == key

    @given(key=keys)
    def test_text_is_plain(self, key):
        """The text is printable ASCII without spaces: it fits into a command line, a column and a log."""
        assert str(key).isascii()
        assert str(key).isprintable()
        assert " " not in str(key)

    @given(text=st.text())
    @example("a")
    @example("a/")
    @example("/b")
    @example("a/b/")
    @example("a/b/c/d")
    @example("a/%")
    @example("a/%4")
    @example("a/%zz")
    @example("a/%2F")
    @example("a/%61")
    @example("a/%ff")
    @example("a/ b")
    @example("a/%  ")
    def test_nothing_else_is_read(self, text):
        """A text is read only if it is exactly what some key is written as; else it is a ValueError."""
        try:
            key = SessionKey.parse(text)
        except ValueError:
            return
        assert str(key) == text

    @pytest.mark.parametrize("parts", [("", "b"), ("a", ""), ("a", "b", "")])
    def test_no_part_is_empty(self, parts):
        """An empty part would be no name."""
        with pytest.raises(ValueError, match="session key"):
            SessionKey(*parts)

    def test_a_readable_key_stays_readable(self):
        """What people see in listings looks like what the channel calls it."""
        assert str(SessionKey("matrix", "!abc:hs.test")) == "matrix/!abc%3ahs.test"
        assert str(SessionKey("terminal", "main")) == "terminal/main"


class TestFileName:
    @given(key=keys)
    @example(SessionKey("a", "../../etc/passwd"))
    @example(SessionKey("..", ".."))
    @example(SessionKey(".", "\0"))
    @example(SessionKey("a", "x" * 10_000))
    def test_it_is_one_safe_name(self, key):
        """One path component, no leading dot, plain characters, at most 150, whatever the key says."""
        name = key.file_name
        assert 0 < len(name) <= 150
        assert name.isascii()
        assert name.isprintable()
        assert PurePosixPath(name).name == name
        assert not name.startswith((".", "~"))
        assert not set(name) & set("/\\:*?\"<>|' \0")

    @given(first=keys, second=keys)
    @example(SessionKey("a", "b", "c"), SessionKey("a", "b=.c"))
    @example(SessionKey("a", "b.c"), SessionKey("a", "b", "c"))
    @example(SessionKey("a", "x" * 500 + "1"), SessionKey("a", "x" * 500 + "2"))
    @example(SessionKey("a", "="), SessionKey("a", "=3d"))
    @example(SessionKey("a", "x" * 300), SessionKey("a", "x" * 100, "x" * 199))
    def test_different_keys_have_different_names(self, first, second):
        """Two conversations never share a file."""
        assume(first != second)
        assert first.file_name != second.file_name

    @given(key=keys)
    def test_it_reads_back_unless_it_was_shortened(self, key):
        """A short key is read from its file's name; a shortened name says that it is one."""
        name = key.file_name
        if "=~" in name:
            with pytest.raises(ValueError, match="shortened"):
                SessionKey.from_file_name(name)
        else:
            assert SessionKey.from_file_name(name) == key

    def test_only_long_keys_are_shortened(self):
        """Up to 150 characters the name is complete, and no name can imitate a shortened one."""
        at_limit = SessionKey("a", "x" * 147)
        assert len(at_limit.file_name) == 150
        assert SessionKey.from_file_name(at_limit.file_name) == at_limit
        shortened = SessionKey("a", "x" * 148).file_name
        assert len(shortened) == 150
        assert "=~" in shortened
        assert "=~" not in SessionKey("a", "=~").file_name

    @given(name=st.text())
    @example("")
    @example("a")
    @example("a=.b=.c=.d")
    @example("a=.")
    @example("a=.=2")
    @example("a=.=zz")
    @example("a=.=41")
    @example("../a=.b")
    def test_nothing_else_is_read(self, name):
        """A foreign file is a ValueError, and nothing worse; what is read has exactly this name."""
        try:
            key = SessionKey.from_file_name(name)
        except ValueError:
            return
        assert key.file_name == name

    def test_control_a_naive_encoding_is_caught(self):
        """Negative control: replacing what is unsafe by a line makes two sessions one."""

        def naive(key: SessionKey) -> str:
            return "".join(char if char.isalnum() else "_" for char in str(key))

        pair = SessionKey("a", "b", "c"), SessionKey("a", "b/c")
        assert naive(SessionKey("a", "b_c")) == naive(pair[0])
        assert len({key.file_name for key in (*pair, SessionKey("a", "b_c"))}) == 3


class TestMessages:
    @given(message=inbound)
    def test_an_inbound_message_survives_a_journal(self, message):
        """Written as JSON and read back, nothing has changed."""
        assert InboundMessage.model_validate_json(message.model_dump_json()) == message

    @given(message=outbound)
    def test_an_outbound_message_survives_a_journal(self, message):
        """Written as JSON and read back, nothing has changed."""
        assert OutboundMessage.model_validate_json(message.model_dump_json()) == message

    def test_a_session_is_its_text_in_json(self):
        """In a journal the key is one string."""
        message = a_message(session=SessionKey("matrix", "!r:hs"))
        assert json.loads(message.model_dump_json())["session"] == "matrix/!r%3ahs"

    def test_a_later_version_may_add_fields(self):
        """What is not known is left out, so a journal can be read by an older program of the same version."""
        data = json.loads(a_message().model_dump_json()) | {"mood": "good"}
        assert InboundMessage.model_validate(data) == a_message()

    @pytest.mark.parametrize(
        "bad",
        [
            {"version": 2},
            {"received_at": "2026-01-01T00:00:00"},
            {"session": "no key"},
            {"session": "a/%zz"},
            {"kind": "noise"},
            {"audience": "everybody"},
            {"text": None},
        ],
        ids=repr,
    )
    def test_what_cannot_be_meant_is_refused(self, bad):
        """Another version, a time without zone, a session that is none: an error, not a guess."""
        data = a_message().model_dump() | bad
        with pytest.raises(ValidationError):
            InboundMessage.model_validate(data)

    def test_messages_do_not_change(self):
        """A message that was accepted stays what it was."""
        message = a_message()
        with pytest.raises(ValidationError):
            message.text = "something else"

    def test_nobody_is_trusted_by_default(self):
        """A sender is not verified unless the channel says so."""
        assert not Sender(address="@alice:hs.test").verified


@dataclass(frozen=True)
class Route:
    question: str = ""
    thread: str | None = None


class TestContext:
    """What a channel and the gateway know of a message besides its words."""

    FULL = MessageContext(
        subject="",
        cc=("a@b.test",),
        allowed_here=False,
        proof=0,
        seen_at=datetime(2026, 1, 1, tzinfo=UTC),
        noted=LineNote(turn=None),
        speech=Speech(owner=True),
        notes=MessageNotes(
            edited="", answers={"a1": "shell"}, heard=(FileTranscript(name="v.ogg"),), job=JobNote(id="abcde")
        ),
    ).with_route(Route("$1"))

    def test_it_survives_a_journal(self):
        """Also what is false, empty or zero and yet says something."""
        message = a_message(context=self.FULL)
        assert InboundMessage.model_validate_json(message.model_dump_json()) == message
        assert message.context.read_route(Route) == Route("$1")

    def test_nothing_is_written_of_what_nobody_has_said(self):
        """A row of the queue does not grow with each field that exists."""
        assert json.loads(a_message().model_dump_json())["context"] == {}
        written = json.loads(a_message(context=self.FULL).model_dump_json())["context"]
        assert written["route"] == {"question": "$1"}
        assert written["notes"].keys() == {"edited", "answers", "heard", "job"}
        assert (written["subject"], written["allowed_here"], written["proof"]) == ("", False, 0)

    @pytest.mark.parametrize(
        "given", [{"cc": 7}, {"seen_at": "soon"}, {"speech": []}, {"notes": {"edited": ["x"]}}]
    )
    def test_what_cannot_be_meant_is_refused(self, given):
        with pytest.raises(ValidationError):
            a_message(context=given)

    def test_the_route_of_another_channel_is_none(self):
        """It is not an error: an answer may carry what another version or channel has written."""
        assert MessageContext(route={"question": 7}).read_route(Route) == Route()


def a_message(**changes) -> InboundMessage:
    values = {
        "channel": "matrix",
        "account": "@bot:hs.test",
        "native_id": "$1",
        "session": SessionKey("matrix", "!r:hs"),
        "sender": Sender(address="@alice:hs.test"),
        "text": "hello",
        "received_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return InboundMessage(**{**values, **changes})
