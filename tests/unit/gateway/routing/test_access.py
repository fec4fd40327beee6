"""Default is no; only proven addresses count; nobody becomes somebody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.messages import InboundMessage, MessageContext, Sender, SessionKey
from gateway.plugins import channel_kinds
from gateway.routing.access import Access, Alias, Role, kind_of, normalise
from tests.clock import EPOCH
from tests.inbound import inbound

OWNER = [Alias("matrix", "@alice:hs.test"), Alias("email", "Alice@Mail.Test")]


def message(channel, address, *, verified=True, name=""):
    return InboundMessage(
        channel=channel,
        account="bot",
        native_id="1",
        session=SessionKey(channel, "c"),
        sender=Sender(address=address, name=name, verified=verified),
        text="hello",
        received_at=EPOCH,
    )


class TestDefault:
    def test_an_empty_list_lets_nobody_in(self):
        """Nothing configured means nobody is answered."""
        decision = Access([], {"matrix": []}).decide(message("matrix", "@alice:hs.test"))
        assert (decision.allowed, decision.role, decision.reason) == (
            False,
            Role.STRANGER,
            "sender_not_allowed",
        )

    def test_a_channel_that_is_not_mentioned_lets_nobody_in(self):
        """An unknown channel is a closed one."""
        assert not Access([], {}).decide(message("email", "a@b.c")).allowed

    @pytest.mark.parametrize("address", ["", "  ", "@", "nobody"])
    def test_no_address_is_nobody(self, address):
        """An empty or odd address is not covered by `*@…` entries either."""
        assert not Access([], {"email": ["*@b.c"]}).decide(message("email", address)).allowed


class TestProof:
    def test_an_unverified_sender_is_nobody_whatever_the_list_says(self):
        """Without evidence neither the owner nor `*` counts."""
        access = Access(OWNER, {"email": ["*", "alice@mail.test"]})
        decision = access.decide(message("email", "alice@mail.test", verified=False))
        assert (decision.allowed, decision.reason) == (False, "sender_not_verified")

    def test_a_display_name_is_never_compared(self):
        """Calling oneself by the owner's address opens nothing."""
        access = Access(OWNER, {"matrix": ["@bob:hs.test"], "email": []})
        for claim in ("@alice:hs.test", "@bob:hs.test", "alice@mail.test", "*"):
            assert not access.decide(message("matrix", "@mallory:hs.test", name=claim)).allowed


class TestOwner:
    def test_the_owner_needs_no_entry(self):
        """An alias is enough on its own channel."""
        access = Access(OWNER, {})
        assert access.decide(message("matrix", "@alice:hs.test")).role is Role.OWNER
        assert access.decide(message("email", "ALICE@mail.test")).role is Role.OWNER

    def test_an_alias_is_worth_nothing_on_another_channel(self):
        """The owner's mail address as a Matrix sender, and the reverse, is a stranger."""
        access = Access(OWNER, {})
        assert not access.decide(message("matrix", "alice@mail.test")).allowed
        assert not access.decide(message("email", "@alice:hs.test")).allowed

    def test_whoever_sits_at_the_machine_is_the_owner(self):
        """Terminal and heartbeat need no alias, but the channel's word that it is them."""
        access = Access([], {})
        assert access.decide(message("terminal", "local")).role is Role.OWNER
        assert not access.decide(message("terminal", "local", verified=False)).allowed


class TestSameness:
    def test_matrix_ids_are_exact(self):
        """Case makes another person."""
        access = Access(OWNER, {"matrix": ["@Bob:hs.test"]})
        assert access.decide(message("matrix", "@Bob:hs.test")).allowed
        for other in ("@bob:hs.test", "@Alice:hs.test", "@alice:HS.test", "@alice:hs.test.evil"):
            assert not access.decide(message("matrix", other)).allowed

    def test_mail_domains_in_both_spellings_are_one(self):
        """A domain with an umlaut is the same in its ASCII form."""
        access = Access([], {"email": ["bob@bücher.example"]})
        assert access.decide(message("email", "Bob@xn--bcher-kva.example")).allowed

    @pytest.mark.parametrize(
        "lookalike",
        [
            "\u212aim@mail.test",
            "kIm@mail.test.",
            "k\u0131m@mail.test",
            "kim@ma\u0456l.test",
            "straße@mail.test",
        ],
    )
    def test_look_alikes_are_strangers(self, lookalike):
        """A Kelvin sign is no K, a dotless i is no i, a Cyrillic letter is no Latin one; ß is not ss."""
        access = Access([Alias("email", "kim@mail.test"), Alias("email", "strasse@mail.test")], {})
        expected = Role.OWNER if lookalike == "kIm@mail.test." else Role.STRANGER
        assert access.decide(message("email", lookalike)).role is expected

    def test_naive_case_folding_would_let_a_look_alike_in(self):
        """The negative control of the test above."""
        assert "\u212aim@mail.test".casefold() == "kim@mail.test"

    @given(st.text(max_size=40))
    def test_normalising_twice_changes_nothing(self, text):
        """The compared form is a fixed point, and total."""
        assert normalise(normalise(text)) == normalise(text)


class TestPatterns:
    def test_everybody_at_a_mail_domain(self):
        """`*@domain` covers exactly that domain."""
        access = Access([], {"email": ["*@Example.org"]})
        assert access.decide(message("email", "x@example.ORG")).allowed
        for other in ("x@sub.example.org", "x@badexample.org", "x@example.org.evil", "@x:example.org"):
            assert not access.decide(message("email", other)).allowed

    def test_everybody_at_a_homeserver(self):
        """`@*:server` covers exactly that server, port included."""
        access = Access([], {"matrix": ["@*:hs.test:8448"]})
        assert access.decide(message("matrix", "@x:hs.test:8448")).allowed
        assert not access.decide(message("matrix", "@x:hs.test")).allowed
        assert not access.decide(message("matrix", "@x:evil:hs.test:8448")).allowed

    def test_everybody(self):
        """`*` covers everybody whose address is proven, as a guest and not as the owner."""
        decision = Access(OWNER, {"email": ["*"]}).decide(message("email", "who@ever.test"))
        assert (decision.allowed, decision.role) == (True, Role.ALLOWED)

    @pytest.mark.parametrize(
        "entry", ["a*@b.c", "*@*", "@*:*", "**", "*b@c.d", "@a*:b", "alice", "", "a b@c.d", "*@"]
    )
    def test_other_patterns_are_refused_and_match_nobody(self, entry):
        """A slip of the hand never opens a door."""
        assert all(plugin.addresses.entry_problem(entry) for plugin in channel_kinds().values())
        access = Access([], {"email": [entry], "matrix": [entry]})
        assert not access.decide(message("email", "ab@c.d")).allowed
        assert not access.decide(message("matrix", "@ab:b")).allowed

    @pytest.mark.parametrize("entry", ["*", "*@b.c", "@*:b.c", "a@b.c", "@a:b.c"])
    def test_the_known_forms_have_no_problem(self, entry):
        """What is documented is accepted by the kind of channel that it is for."""
        assert not all(plugin.addresses.entry_problem(entry) for plugin in channel_kinds().values())


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("@a:b", "matrix"),
        ("@a:b:1", "matrix"),
        ("a@b", "email"),
        ("a@b@c", "email"),
        ("@:b", None),
        ("a", None),
        ("<a@b>", None),
    ],
)
def test_the_kind_of_an_address_is_seen_from_its_form(address, kind):
    """Bare aliases belong to the channel of their form."""
    assert kind_of(address) == kind


def test_a_rule_of_the_room_counts_instead_of_the_list():
    """What a channel says about the very room opens or closes it, for all but the owner and the unproven."""
    access = Access([Alias("matrix", "@owner:hs.test")], {"matrix": ("@ann:hs.test",)})

    def decided(address, here, *, verified=True):
        one = inbound(
            SessionKey("matrix", "!r"),
            address,
            "hi",
            "$1",
            account="@bot:hs.test",
            verified=verified,
            context=MessageContext(allowed_here=here),
        )
        return access.decide(one)

    assert decided("@ann:hs.test", None).allowed
    assert decided("@ann:hs.test", False).reason == "not_allowed_here"
    assert decided("@bob:hs.test", True).role is Role.ALLOWED
    assert not decided("@bob:hs.test", True, verified=False).allowed
    assert not decided("@bob:hs.test", "yes").allowed
    assert decided("@owner:hs.test", False).role is Role.OWNER


class TestBorrowedAddresses:
    """A channel without addresses of its own: people are there who they are elsewhere."""

    def access(self, **lists):
        kinds = {"api": "api", "email": "email", "matrix": "matrix", "work": "email"}
        return Access(OWNER, {"api": [], **lists}, kinds=kinds, apart=["work"])

    def test_the_owner_is_the_owner_by_every_alias(self):
        for address in ("@alice:hs.test", "alice@mail.test"):
            assert self.access().role("api", address, verified=True) is Role.OWNER
            assert self.access().role("api", address, verified=False) is Role.STRANGER
        assert self.access().owner_addresses_on("api") == ["@alice:hs.test", "alice@mail.test"]
        assert self.access().owner_addresses_on("matrix") == ["@alice:hs.test"]

    def test_others_may_talk_who_may_talk_elsewhere(self):
        access = self.access(email=["bob@mail.test", "*@friends.test"])
        for address in ("bob@mail.test", "eve@friends.test"):
            assert access.role("api", address, verified=True) is Role.ALLOWED
        assert access.role("api", "mallory@mail.test", verified=True) is Role.STRANGER
        access.admit("email", ["mallory@mail.test"])
        assert access.role("api", "mallory@mail.test", verified=True) is Role.ALLOWED
        assert access.role("matrix", "bob@mail.test", verified=True) is Role.STRANGER

    def test_an_account_that_verifies_people_otherwise_lets_nobody_in(self):
        access = self.access(work=["bob@mail.test", "*"])
        assert access.role("work", "bob@mail.test", verified=True) is Role.ALLOWED
        assert access.role("api", "bob@mail.test", verified=True) is Role.STRANGER
