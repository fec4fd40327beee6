"""Several accounts of one kind: how they are named, what is refused, and who is who on them."""

from __future__ import annotations

import pytest

from agent_core.messages import SessionKey
from channels.email.config import EmailConfig
from channels.matrix.config import MatrixConfig
from gateway.errors import ConfigInvalid
from gateway.proactive.owner_contact import Target, is_preferred
from gateway.routing.access import Access, Alias, Role
from gateway.settings import load_settings

OWNER = "@alice:hs.test"


def matrix(user, **more):
    extra = "".join(f", {name}: {value}" for name, value in more.items())
    return f"{{homeserver: 'https://hs.test', user_id: '@{user}:hs.test', password: pw-{user}{extra}}}"


def email(user, **more):
    extra = "".join(f", {name}: {value}" for name, value in more.items())
    servers = "imap: {host: m.test}, smtp: {host: m.test}, trusted_authserv_ids: [m.test]"
    return f"{{address: {user}@m.test, username: {user}, password: pw-{user}, {servers}{extra}}}"


@pytest.fixture
def load(tmp_path):
    def loaded(*, owner="", **channels):
        lines = [f"owner: {{aliases: ['{owner}']}}"] if owner else []
        lines.append("channels:")
        for kind, given in channels.items():
            if isinstance(given, str):
                lines.append(f"  {kind}: {given}")
            else:
                lines += [f"  {kind}:", *(f"    - {one}" for one in given)]
        path = tmp_path / "squidbot.yaml"
        path.touch(mode=0o600)
        path.write_text("\n".join(lines) + "\n")
        return load_settings(path, environ={})

    return loaded


class TestSettings:
    def test_a_mapping_is_one_account_by_the_name_of_its_kind(self, load):
        """As it always was."""
        channels = load(matrix=matrix("bot"), email=email("bot")).channels
        assert list(channels.enabled()) == ["matrix", "email"]
        assert channels.kinds() == {"matrix": "matrix", "email": "email"}
        assert isinstance(channels.matrix, MatrixConfig)
        assert isinstance(channels.email, EmailConfig)

    def test_a_list_is_several_each_by_its_name(self, load):
        """The first may go without; each has its own people and its own secret."""
        settings = load(
            matrix=[matrix("bot"), matrix("club", name="club", allow_from="['@bob:hs.test']")],
            email=[email("bot", name="front-desk_2"), email("own", name="own", enabled="false")],
        )
        assert list(settings.channels.enabled()) == ["matrix", "club", "front-desk_2"]
        assert settings.allow_from()["club"] == ("@bob:hs.test",)
        assert settings.allow_from()["matrix"] == ()
        assert settings.channels.kinds()["own"] == "email"
        assert settings.secrets() >= {"pw-bot", "pw-club", "pw-own"}

    @pytest.mark.parametrize(
        ("channels", "told"),
        [
            (
                {"matrix": [matrix("a"), matrix("b", name="x")], "email": [email("a", name="x")]},
                'line 6, channels.email[0].name: "x" is already the name of channels.matrix[1]',
            ),
            (
                {"matrix": [matrix("a"), matrix("a", name="x")]},
                "line 4, channels.matrix[1].user_id: @a:hs.test is already the account of channels.matrix[0]",
            ),
            (
                {"email": [email("a"), email("b", name="x").replace("b@m.test", "A@M.test")]},
                "channels.email[1].address: a@m.test is already the account of channels.email[0]",
            ),
            ({"matrix": [matrix("a"), matrix("b")]}, "line 4, channels.matrix[1].name: is missing"),
            ({"matrix": [matrix("a", name="terminal")]}, '"terminal" is a reserved name'),
            ({"matrix": [matrix("a", name="email")]}, '"email" is a reserved name'),
            ({"matrix": [matrix("a", name="'../x'")]}, "channels.matrix[0].name: '../x' is not a valid name"),
            ({"matrix": [matrix("a", name="x" * 41)]}, "is not a valid name"),
            ({"matrix": [matrix("a", nmae="x")]}, 'channels.matrix[0].nmae: unknown key; did you mean "name"?'),
            ({"matrix": ["{user_id: 5}"]}, "line 3, channels.matrix[0].homeserver: is missing"),
            ({"email": [email("a"), email("b", name="b", allow_from="['*x@b.c']")]}, "channels.email[1].allow_from[0]"),
            ({"matrix": "5"}, 'channels.matrix: must be "key: value" lines, not 5'),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_told_with_its_place(self, load, channels, told):
        """Names that are missing, taken or impossible, one account twice, and mistakes inside of one."""
        with pytest.raises(ConfigInvalid) as caught:
            load(**channels)
        assert told in str(caught.value)

    def test_an_account_that_nobody_may_talk_to_is_told(self, load):
        """By its place; the owner is recognised by the kind."""
        told = load(owner=OWNER, matrix=[matrix("a"), matrix("b", name="b")], email=[email("c")]).warnings
        assert [each for each in told if "nobody can talk" in each] == [
            "channels.email[0]: nobody can talk to the bot; name people in allow_from or owner.aliases"
        ]


class TestPeople:
    access = Access(
        [Alias("matrix", OWNER)],
        {"matrix": ("*",), "club": ("@bob:hs.test", "@friend-bot:hs.test"), "desk": ("*@hs.test",)},
        kinds={"matrix": "matrix", "club": "matrix", "desk": "email"},
        own=("@bot:hs.test", "@friend-bot:hs.test", "desk@hs.test"),
    )

    def role(self, channel, address):
        return self.access.role(channel, address, verified=True)

    def test_the_owner_is_the_owner_on_every_account_of_the_kind(self):
        """And on no other kind."""
        assert self.role("club", OWNER) is Role.OWNER
        assert self.role("matrix", OWNER) is Role.OWNER
        assert self.role("desk", OWNER) is Role.STRANGER

    def test_others_are_let_in_where_they_are_named(self):
        """On one account, not on its neighbour."""
        assert self.role("club", "@bob:hs.test") is Role.ALLOWED
        assert self.role("club", "@eve:hs.test") is Role.STRANGER
        assert self.role("matrix", "@eve:hs.test") is Role.ALLOWED

    def test_two_accounts_of_the_bot_do_not_talk_to_each_other(self):
        """A ``*`` does not mean them, because they would never stop; by name it is somebody's wish."""
        assert self.role("matrix", "@bot:hs.test") is Role.STRANGER
        assert self.role("desk", "desk@hs.test") is Role.STRANGER
        assert self.role("desk", "other@hs.test") is Role.ALLOWED
        assert self.role("club", "@friend-bot:hs.test") is Role.ALLOWED


def test_matrix_is_preferred_to_mail_whatever_the_accounts_are_called():
    """The owner's conversation moves from a mailbox to a room, not the other way, nor between two rooms."""
    kind = {"club": "matrix", "desk": "email", "matrix": "matrix"}.get

    def at(channel):
        return Target(channel, "bot", SessionKey(channel, "x"))

    assert is_preferred(at("club"), at("desk"), kind)
    assert not is_preferred(at("desk"), at("club"), kind)
    assert not is_preferred(at("club"), at("matrix"), kind)
