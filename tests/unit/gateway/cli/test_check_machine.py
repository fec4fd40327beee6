"""`squidbot check`, what is around: rights, disk, port, unit, servers one step after the other, the clock."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import pytest
import trustme
from anyio.streams.tls import TLSListener

from agent_core.skills import SkillsLoader
from agent_core.skills.added_skills import AddedSkills
from gateway.cli.check import machine_checks as machine
from gateway.cli.check.all_checks import _report_skills
from gateway.cli.check.check_report import CheckReport, FindingLevel
from gateway.cli.check.network_checks import Server, clock_finding, configured_servers, probe_server
from gateway.cli.setup.first_message import _Known
from gateway.settings import load_settings
from gateway.system.home import Home, open_home

NOW = datetime(2026, 1, 3, 14, 5, tzinfo=UTC)


@pytest.fixture
def home(tmp_path):
    return open_home(tmp_path / "h")


class TestMachine:
    def test_a_home_of_its_owner_alone_is_fine(self, home):
        """Nothing is said."""
        assert list(machine.ownership(home, [])) == []

    @pytest.mark.parametrize(("mode", "word"), [(0o755, "look into"), (0o770, "change")])
    def test_a_home_that_others_can_use_is_told(self, home, mode, word):
        """With the command that closes it."""
        home.root.chmod(mode)
        [finding] = machine.ownership(home, [])
        assert word in finding.text
        assert finding.what_to_do == f"chmod 700 {home.root}"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
    def test_a_home_of_somebody_else_is_told_but_not_that_of_a_service(self, home):
        """Root's `squidbot check` beside a system service is no fault; root's files in its home are one."""
        (home.root / "state").chmod(0o700)
        os.chown(home.root, 65534, 65534)
        os.chown(home.root / "state", 65534, 65534)
        assert [one.verdict for one in machine.ownership(home, [])] == [FindingLevel.WARNING]
        assert list(machine.ownership(home, [], services=home.root.parent)) == []
        _Known(home.state("init") / "greeted.json").add(
            "matrix:@a:hs.test"
        )  # as `init` does beside the service
        assert list(machine.ownership(home, [], services=home.root.parent)) == []
        (home.root / "state" / "x").touch(0o600)
        [finding] = machine.ownership(home, [], services=home.root.parent)
        assert finding.verdict is FindingLevel.FAILED

    def test_loose_files_inside_are_told(self, home):
        """The database, tokens and keys of channels, secrets: whoever reads them is us."""
        paths = [home.database, home.state("matrix") / "session.json", home.root / "secrets" / "pw"]
        for path in paths:
            path.parent.mkdir(exist_ok=True)
            path.touch(mode=0o600)
            path.chmod(0o600)
        assert list(machine.ownership(home, [])) == []
        for path in paths:
            path.chmod(0o644)
            [finding] = machine.ownership(home, [])
            assert str(path) in finding.text
            path.chmod(0o600)

    @pytest.mark.parametrize(
        ("kind", "said"), [("ext4", None), ("tmpfs", "memory of this machine"), ("nfs4", "network file system"),
                           ("overlay", "the container itself")],
    )  # fmt: skip
    def test_the_kind_of_disk_is_told(self, home, kind, said):
        """The mount that is nearest counts, not the one above it."""
        mounts = f"/dev/a / tmpfs rw 0 0\n/dev/b {home.root} {kind} rw 0 0\n/dev/c {home.root}x nfs rw 0 0\n"
        texts = " ".join(one.text for one in machine.disk(home, mounts=mounts))
        assert (said or "files are free") in texts

    def test_a_port_is_tried(self):
        """One that another program has is told with how to find out which; a free one is fine."""
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            number = other.getsockname()[1]
            taken = machine.port("127.0.0.1", number)
            assert (taken.verdict, f"sport = :{number}" in taken.what_to_do) == (FindingLevel.FAILED, True)
        assert machine.port("127.0.0.1", number).verdict is FindingLevel.OK
        assert "cannot be listened on" in machine.port("192.0.2.1", number).text

    def test_a_unit_is_looked_for(self, tmp_path):
        """No systemd, no unit, one that is not enabled, one that is; for the system and for one person."""
        me = tmp_path / "me"
        assert machine.unit(root=tmp_path, user_home=me).verdict is FindingLevel.SKIPPED
        (tmp_path / "run/systemd/system").mkdir(parents=True)
        assert "does not start" in machine.unit(root=tmp_path, user_home=me).text
        for folder, how in ((me / ".config/systemd/user", "systemctl --user enable"),
                            (tmp_path / "etc/systemd/system", "systemctl enable")):  # fmt: skip
            folder.mkdir(parents=True)
            (folder / "squidbot.service").touch()
            finding = machine.unit(root=tmp_path, user_home=me)
            assert (finding.verdict, how in finding.what_to_do) == (FindingLevel.WARNING, True)
        wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir()
        (wants / "squidbot.service").symlink_to("../squidbot.service")
        assert machine.unit(root=tmp_path, user_home=me).verdict is FindingLevel.OK


@contextlib.asynccontextmanager
async def server(answer, *, tls=None, before=b""):
    """A server that says ``before``, reads once, says ``answer``; gives its port."""

    async def serve(stream):
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError):
                if before:
                    await stream.send(before)
                await stream.receive()
                await stream.send(answer)

    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    listener = TLSListener(plain, tls, standard_compatible=False, handshake_timeout=20) if tls else plain
    number = plain.extra(anyio.abc.SocketAttribute.local_port)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_quietly, listener, serve)
        yield number
        tasks.cancel_scope.cancel()


async def _quietly(listener, serve):
    async with listener:
        await listener.serve(serve)


def context_of(authority, **more):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(more.pop("name", "localhost"), **more).configure_cert(context)
    return context


class TestNetwork:
    @pytest.fixture
    def authority(self):
        return trustme.CA()

    async def told(self, target):
        with anyio.fail_after(60):
            return (await probe_server(target, now=lambda: NOW)).finding

    async def test_a_name_that_nobody_knows(self):
        """DNS is told apart from everything else (RFC 6761: nothing ends in .invalid)."""
        finding = await self.told(Server("x", "nobody.invalid", 443, "tls"))
        assert finding.verdict is FindingLevel.FAILED
        assert "name" in finding.text
        assert finding.what_to_do

    async def test_nobody_listens(self):
        """Refused, and not merely "cannot be reached"."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            number = probe.getsockname()[1]
        assert "refuses the connection" in (await self.told(Server("x", "127.0.0.1", number, "tls"))).text

    async def test_nobody_answers(self):
        """A server that takes the connection and says nothing is given up after the limit."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            target = Server("x", "127.0.0.1", silent.getsockname()[1], "imap")
            finding = (await probe_server(target, now=lambda: NOW, limit_s=0.2)).finding
        assert "does not answer" in finding.text

    async def test_certificates_are_told_apart(self, authority, tmp_path):
        """Good, expired, of an unknown authority, for another name, none at all: each in its own words."""
        ca = tmp_path / "ca.pem"
        authority.cert_pem.write_to_path(str(ca))
        past = datetime.now(UTC) - timedelta(days=2)
        for context, ca_file, said in (
            (context_of(authority), ca, "valid certificate"),
            (context_of(authority, not_after=past, not_before=past - timedelta(days=1)), ca, "expired"),
            (context_of(authority), None, "no authority that this machine trusts"),
            (context_of(authority, name="other.test"), ca, "another name than localhost"),
            (None, ca, "does not speak TLS"),
        ):
            async with server(b"HTTP/1.1 200 OK\r\n\r\n" if context is None else b"x", tls=context,
                              before=b"" if context else b"* OK here\r\n") as number:  # fmt: skip
                finding = await self.told(Server("x", "localhost", number, "tls", ca_file=ca_file))
            assert said in finding.text, said
            assert bool(finding.what_to_do) == (finding.verdict is FindingLevel.FAILED)

    async def test_an_authority_that_cannot_be_read(self, tmp_path):
        """It is the file that is wrong, not the server."""
        async with server(b"x") as number:
            finding = await self.told(Server("x", "localhost", number, "tls", ca_file=tmp_path / "none.pem"))
        assert "tls_ca_file" in finding.text

    @pytest.mark.parametrize(
        ("way", "before", "answer"),
        [
            ("imap", b"* OK here\r\n", b"a BAD unknown\r\n"),
            ("smtp", b"220 here\r\n", b"250 here\r\n454 no\r\n"),
        ],
    )
    async def test_a_server_without_starttls(self, way, before, answer):
        """It is named, and nothing is said to it in the clear."""
        async with server(answer, before=before) as number:
            finding = await self.told(Server("x", "localhost", number, way))
        assert finding.verdict is FindingLevel.FAILED

    @pytest.mark.parametrize(
        ("ahead_s", "verdict", "word"),
        [(0, FindingLevel.OK, "agrees"), (-59, FindingLevel.OK, "agrees"), (61, FindingLevel.WARNING, "61 s ahead of"),
         (-7200, FindingLevel.WARNING, "7200 s behind")],
    )  # fmt: skip
    async def test_the_clock_is_compared_with_the_servers(self, ahead_s, verdict, word):
        """By the Date of an answer; more than a minute is told, with what follows from it."""
        date = format_datetime(NOW - timedelta(seconds=ahead_s), usegmt=True)
        async with server(f"HTTP/1.1 200 OK\r\nDate: {date}\r\n\r\n".encode()) as number:
            reached = await probe_server(
                Server("hs", "127.0.0.1", number, "plain", path="/v"), now=lambda: NOW
            )
        assert reached.finding.verdict is FindingLevel.OK
        finding = clock_finding([("hs", reached.ahead_s)])
        assert (finding.verdict, word in finding.text) == (verdict, True)
        assert ("reminders" in finding.text) == (verdict is FindingLevel.WARNING)

    async def test_an_answer_without_a_date_says_nothing_about_the_clock(self):
        """As little as no server at all; one server with a wrong clock does not outvote another."""
        async with server(b"nonsense\r\n\r\n") as number:
            reached = await probe_server(
                Server("hs", "127.0.0.1", number, "plain", path="/v"), now=lambda: NOW
            )
        assert (reached.finding.verdict, reached.ahead_s) == (FindingLevel.OK, None)
        assert clock_finding([]).verdict is FindingLevel.SKIPPED
        assert clock_finding([("a", 9999.0), ("b", 1.0)]).verdict is FindingLevel.OK

    def test_every_server_of_the_settings_is_looked_at(self, tmp_path):
        """Homeserver, both mail servers with their ways, each provider with an address; not what is off."""
        (tmp_path / "c.yaml").write_text(
            "channels:\n"
            "  matrix: {homeserver: 'https://hs.test/x', user_id: '@b:hs.test', password: p}\n"
            "  email:\n"
            "  - {address: b@m.test, username: b, password: p, dkim: verify, imap: {host: i.test}, smtp: {host: s.test}}\n"
            "  - {name: off, enabled: false, address: c@m.test, username: c, password: p, dkim: verify,"
            " imap: {host: j.test}, smtp: {host: k.test}}\n"
            "llm: {providers: {p: {api_base: 'http://p.test:99/v1'}, q: {}}, models: {m: {model: demo/m}}, pools: {main: [m]}}\n"
        )
        found = [(one.part, one.host, one.port, one.way, one.path) for one in
                 configured_servers(load_settings(tmp_path / "c.yaml", environ={}))]  # fmt: skip
        assert found == [
            ("matrix homeserver", "hs.test", 443, "tls", "/x/_matrix/client/versions"),
            ("email imap", "i.test", 993, "tls", ""),
            ("email smtp", "s.test", 587, "smtp", ""),
            ("provider p", "p.test", 99, "plain", "/v1/models"),
        ]


def test_a_home_is_needed_for_nothing_else(tmp_path):
    """Looking at a machine makes nothing."""
    assert machine.file_system_of(tmp_path, "") == ""
    assert list(tmp_path.iterdir()) == []
    assert Home(tmp_path / "h").last_good == tmp_path / "h" / "state" / "last-good.yaml"


def test_a_skill_that_the_assistant_does_not_get(tmp_path):
    """One that cannot be read, one that lacks a program, and one that is in no folder; a good one is not named."""
    for name, head in (("good", "name: good"), ("bad", "name: Bad Name"), ("poor", "name: poor")):
        (tmp_path / name).mkdir()
        needs = "requires: {bins: [no-such-program]}\n" if name == "poor" else ""
        (tmp_path / name / "SKILL.md").write_text(f"---\n{head}\ndescription: x\n{needs}---\ntext\n")
    (tmp_path / "tea.md").write_text("---\nname: tea\n")
    report = CheckReport()
    _report_skills(report, SkillsLoader(tmp_path, added=AddedSkills(tmp_path, tmp_path / "skills.json")))
    told = "\n".join(one.text for one in report.findings)
    assert len(report.findings) == 3
    assert "name must be a word" in told and "no-such-program" in told and "tea.md: should be" in told
    assert "good" not in told
