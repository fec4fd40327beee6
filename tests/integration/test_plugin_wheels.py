"""A channel and a family of tools in wheels of their own: built, installed beside squidbot, run in a daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
import yaml

from tests import irc_server
from tests.daemon import REPOSITORY, Daemon, one_model
from tests.doubles.openai_server import Call, FakeOpenAI, Say, Stall
from tests.example_wheels import NO_UV, UV, environment_with
from tests.irc_server import IrcPerson, IrcServer

EXAMPLES = ("squidbot-irc", "squidbot-tool-dice")

pytestmark = [
    pytest.mark.skipif(irc_server.PROGRAM is None, reason=irc_server.MISSING),
    pytest.mark.skipif(not Path(UV).exists(), reason=NO_UV),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment that has all that ours has, and the two wheels."""
    return environment_with(tmp_path_factory.mktemp("wheels"), *EXAMPLES)


def _settings(server, fake, **more):
    return {
        "owner": {"aliases": ["alice"]},
        "llm": one_model("m", fake.api_base),
        "plugins": {"enabled": ["irc", "dice"], **more},
        "channels": {
            "irc": {
                "server": "127.0.0.1",
                "port": server.port,
                "tls": False,
                "nick": "squid",
                "password": irc_server.PASSWORD,
                "trust_nicks": True,
            }
        },
    }


@pytest.fixture
async def server(tmp_path):
    server = IrcServer(tmp_path)
    await server.start()
    yield server
    server.close()


async def _answers(person, count):
    with anyio.fail_after(120):
        while len(person.seen) < count:
            await person.catch_up()
            await anyio.sleep(0.1)
    return [text for _, text in person.seen]


async def test_a_question_on_irc_is_answered_with_a_tool_of_another_package(python, server, tmp_path):
    """The owner asks by a private message; the tool needs no yes, because the settings repeat its effect."""
    async with FakeOpenAI() as fake:
        fake.plan(Say(calls=[Call("dice_roll", '{"dice": 1, "sides": 2}')]), Say("Rolled."))
        settings = _settings(server, fake, effects={"dice": {"dice_roll": "read"}})
        with Daemon(tmp_path / "home", settings) as daemon:
            daemon.python = python
            await anyio.to_thread.run_sync(daemon.up)
            async with IrcPerson(server, "Alice") as alice, IrcPerson(server, "mallory") as mallory:
                await alice.say("squid", "roll a die")
                assert await _answers(alice, 1) == ["Rolled."]
                result = [one for one in fake.requests[-1]["messages"] if one["role"] == "tool"]
                assert "(sum " in str(result), result
                await mallory.say("squid", "and me?")
                await alice.say("squid", "still there?")
                answers = await _answers(alice, 3)  # an echo has a line before it
                assert answers[-1] == "still there?"
                await mallory.catch_up()
                assert mallory.seen == []
            daemon.terminate()
            assert await anyio.to_thread.run_sync(daemon.ended) == 0


async def test_a_tool_that_the_settings_do_not_name_is_asked_about(python, server, tmp_path):
    """It counts as running a program."""
    async with FakeOpenAI() as fake:
        fake.plan(Say(calls=[Call("dice_roll", '{"dice": 1}')]))
        with Daemon(tmp_path / "home", _settings(server, fake)) as daemon:
            daemon.python = python
            await anyio.to_thread.run_sync(daemon.up)
            async with IrcPerson(server, "alice") as alice:
                await alice.say("squid", "roll a die")
                asked = " ".join(await _answers(alice, 2))
            assert "dice_roll" in asked
            assert "!approve" in asked
            assert len(fake.requests) == 1


async def test_a_command_of_another_package_is_one_of_squidbots(python, server, tmp_path):
    """It has help, its request reaches the account in the daemon, and what it refuses is one sentence."""
    async with FakeOpenAI() as fake:
        fake.plan(Say("Hello, room."))
        with Daemon(tmp_path / "home", _settings(server, fake)) as daemon:
            daemon.python = python
            await anyio.to_thread.run_sync(daemon.up)

            def squidbot(*words):
                path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])
                return subprocess.run(
                    [python, "-m", "gateway", *words, "--home", str(tmp_path / "home")],
                    capture_output=True, text=True, timeout=240, check=False,
                    env={**os.environ, "PYTHONPATH": path},
                )  # fmt: skip

            alice = IrcPerson(server, "alice")
            await alice.connect("#den")
            try:
                shown = await anyio.to_thread.run_sync(squidbot, "irc", "join", "--help")
                assert "Join a room until the next start." in shown.stdout
                done = await anyio.to_thread.run_sync(squidbot, "irc", "join", "den\r\nQUIT")
                assert (done.returncode, done.stdout) == (75, "")
                assert "is not the name of a room" in done.stderr
                done = await anyio.to_thread.run_sync(squidbot, "irc", "join", "#den")
                assert (done.returncode, done.stdout) == (0, "asked the server for #den\n")
                await alice.until_online("squid")
                await alice.say("#den", "squid: are you here?")
                assert (await _answers(alice, 1))[-1] == "Hello, room."
            finally:
                await alice.close()
            unknown = await anyio.to_thread.run_sync(squidbot, "irk", "join")
            assert unknown.returncode != 0


async def test_a_kill_in_the_middle_of_a_turn_loses_and_doubles_nothing(python, server, tmp_path):
    """What was accepted from a channel of another package is answered once after a restart."""
    async with FakeOpenAI() as fake:
        fake.plan(Stall(), Say("Once."))
        with Daemon(tmp_path / "home", _settings(server, fake)) as daemon:
            daemon.python = python
            await anyio.to_thread.run_sync(daemon.up)
            async with IrcPerson(server, "alice") as alice:
                await alice.say("squid", "are you there?")
                with anyio.fail_after(60):
                    while not fake.requests:
                        await anyio.sleep(0.05)
                await anyio.to_thread.run_sync(daemon.kill)
                await anyio.to_thread.run_sync(daemon.up)
                assert await _answers(alice, 1) == ["Once."]
                await alice.say("squid", "and now?")
                assert (await _answers(alice, 3))[-1] == "and now?"
                assert [text for _, text in alice.seen].count("Once.") == 1


async def test_check_lists_both_and_an_owner_is_named_by_a_bare_nick(python, server, tmp_path):
    """With package, version and what they are; where they are not installed, it says how to."""
    async with FakeOpenAI() as fake:
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        (home / "squidbot.yaml").write_text(yaml.safe_dump(_settings(server, fake)))
        (home / "squidbot.yaml").chmod(0o600)
        command = ("-m", "gateway", "check", "--home", str(home), "--json")
        path = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])}

        def check(program):
            return subprocess.run(
                [program, *command], capture_output=True, text=True, timeout=240, check=False, env=path
            )

        done = await anyio.to_thread.run_sync(check, python)
        told = {one["name"]: (one["state"], one["text"]) for one in json.loads(done.stdout)["checks"]}
        for name, group, package in (
            ("irc", "channels", "squidbot-irc"),
            ("dice", "tools", "squidbot-tool-dice"),
        ):
            said = f"{package} 0.1.0, squidbot.{group} version 1; it runs with all rights of squidbot"
            assert told[f"plugin {name}"] == ("ok", said)
        assert told["irc server"][0] == told["irc"][0] == "ok"
        done = await anyio.to_thread.run_sync(check, sys.executable)
        assert "--with PATH/squidbot_irc.whl" in done.stdout
        assert done.returncode == 78
