"""Threads of mails: which one a mail belongs to, our ids, and the references of an answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_core.messages import SessionKey
from channels.email.parse.mail_threads import (
    is_own_id,
    message_id_of,
    native_id_of,
    recipient_of,
    reply_references,
    session_of,
    thread_tag,
)

BOT = "bot@mail.test"

SESSION = session_of("email", "ab" * 12, "alice@mail.test")


class TestThreads:
    def test_the_head_of_the_chain_names_the_thread(self) -> None:
        """First mail, answer and follow-up have one tag; another first mail has another."""
        first = thread_tag("<a@x>", (), account=BOT)
        own = message_id_of("k1", session_of("email", first, "alice@mail.test"), account=BOT)

        assert thread_tag("<c@x>", ("<a@x>", own), account=BOT) == first
        assert thread_tag("<c@x>", ("<a@x>",), account=BOT) == first
        assert thread_tag("<c@x>", (own,), account=BOT) == first, "In-Reply-To alone"
        assert thread_tag("<b@x>", (), account=BOT) != first

    def test_ids_are_fixed_by_the_row(self) -> None:
        """The same row has the same id, another row another, and strangers' ids are not ours."""
        one = message_id_of("k1", SESSION, account=BOT)

        assert one == message_id_of("k1", SESSION, account=BOT)
        assert one != message_id_of("k2", SESSION, account=BOT)
        assert is_own_id(one, account=BOT)
        assert not is_own_id(one, account="bot@other.test")
        assert not is_own_id("<a@mail.test>", account=BOT)

    def test_a_session_is_a_thread_and_a_person(self) -> None:
        """Who names a foreign thread gets a session of his own, and the key says where to write."""
        other = session_of("email", "ab" * 12, "bob@mail.test")

        assert other != SESSION
        assert recipient_of(SESSION) == "alice@mail.test"
        assert recipient_of(SessionKey("email", "alice@mail.test")) == "alice@mail.test"
        assert recipient_of(SessionKey("heartbeat", "owner")) is None
        assert SessionKey.parse(str(SESSION)) == SESSION

    def test_identity_of_a_mail(self) -> None:
        """Id and sender, with proof apart from without; the digest where there is no id."""
        real = native_id_of("<a@x>", "alice@mail.test", "d1", verified=True)

        assert real == native_id_of("<a@x>", "alice@mail.test", "d2", verified=True)
        assert real != native_id_of("<a@x>", "bob@mail.test", "d1", verified=True)
        assert real != native_id_of("<a@x>", "alice@mail.test", "d1", verified=False)
        assert native_id_of(None, "a", "d1", verified=True) != native_id_of(None, "a", "d2", verified=True)

    @given(st.lists(st.integers(0, 99), max_size=60))
    def test_reply_references(self, numbers: list[int]) -> None:
        """The first and the newest stay, the answered one is last, nothing twice."""
        chain = list(dict.fromkeys(f"<{number}@x>" for number in numbers))
        result = reply_references(chain, "<last@x>")

        assert result[0] == (chain[0] if chain else "<last@x>")
        assert result[-1] == "<last@x>"
        assert len(result) <= 21
        assert len(set(result)) == len(result)
