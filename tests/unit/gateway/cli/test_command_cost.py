"""What commands load: `squidbot --help` next to nothing, a question to the daemon none of the daemon's libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import anyio
import pytest

from gateway.cli.output import program_command
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests.command_line import squidbot

ROOT = Path(__file__).resolve().parents[4]
# Each of these takes longer to load than a quarter of what the whole command may take (200 ms).
SLOW = {
    "pydantic",
    "cyclopts",
    "rich",
    "structlog",
    "anyio",
    "asyncio",
    "aiohttp",
    "litellm",
    "loguru",
    "nio",
    "http",
    "ssl",
}
# What talks and counts in a daemon; what is asked of the home alone needs none of it.
NOT_FOR_THE_HOME = {
    "aiohttp",
    "cyclopts",
    "http",
    "litellm",
    "nio",
    "prometheus_client",
    "aioimaplib",
}
# What other questions to the home need: an eighth of what `status` would load.
NOT_FOR_STATUS = {
    "gateway.operations.job_operations",
    "gateway.proactive.background_jobs",
    "agent_core.storage.jsonl_memory",
}
OURS_SLOW = {
    "gateway.settings",
    "gateway.operations.status_operation",
    "gateway.store.sqlite.sqlite_queue",
    "agent_core.messages",
}


def loaded_by(*arguments, home, beside=ROOT, **environment):
    """What is loaded when a command, or several behind each other, have ended, and what they printed."""
    script = """
        import json, sys
        from gateway.cli import main
        ended = 0
        for words in " ".join(sys.argv[1:]).split(" && "):
            sys.argv = ["squidbot", *words.split()]
            try:
                main()
            except SystemExit as end:
                ended = ended or end.code
        sys.stdout.flush()
        print("\\n" + json.dumps([ended, sorted(sys.modules)]), file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        cwd=ROOT, env={
            **os.environ, "PYTHONPATH": f"{ROOT}:{beside}", "SQUIDBOT_HOME": str(home), **environment
        },
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    ended, modules = json.loads(done.stderr.splitlines()[-1])
    assert ended == 0, done.stderr
    return set(modules), done.stdout


def slow(modules):
    return {name.partition(".")[0] for name in modules} & SLOW | modules & OURS_SLOW


async def make_store(database):
    """An empty store of today's version."""
    store = await SqliteQueue.open(database, clock=SystemClock())
    await store.aclose()


@pytest.fixture
def home(tmp_path):
    """A home that a daemon has used: a database, a configuration, and the copy of it that was good."""
    home = open_home(tmp_path / "h")
    home.root.chmod(0o700)
    anyio.run(make_store, home.database)
    for path in (home.config_file, home.last_good):
        path.write_text("channels: {}\n")
        path.chmod(0o600)
    return home


def test_help_loads_nothing_slow(home):
    """`squidbot --help` prints what was made beforehand."""
    modules, told = loaded_by("--help", home=home.root)
    assert not slow(modules)
    assert "status" in told


def test_status_without_a_daemon_leaves_nothing_behind(home):
    """It is answered from the home itself: the queue as it is, and that nothing runs."""
    before = sorted(path.name for path in home.root.iterdir())
    modules, told = loaded_by("status", home=home.root)
    assert not {name.partition(".")[0] for name in modules} & NOT_FOR_THE_HOME
    assert not modules & NOT_FOR_STATUS
    assert "not running" in told
    assert sorted(path.name for path in home.root.iterdir()) == before


def test_status_of_a_daemon_loads_nothing_slow(home):
    """The answer comes through the control socket; a socket with a thread stands in for the daemon."""
    answer = '{"result": {"version": "7.7", "running": true, "work": {"inbox": {}, "outbox": {}}}}'
    script = f"""
        import fcntl, os, socket, sys, threading
        home = os.environ["SQUIDBOT_HOME"]
        lock = os.open(home, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = socket.socket(socket.AF_UNIX)
        server.bind(os.path.join(home, "run/control.sock"))
        server.listen()
        print("ready", flush=True)
        link, _ = server.accept()
        link.recv(4096)
        body = {answer!r}.encode()
        link.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
        link.recv(4096)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "SQUIDBOT_HOME": str(home.root)}, stdout=subprocess.PIPE, text=True,
    ) as standing_in:  # fmt: skip
        try:
            assert standing_in.stdout.readline() == "ready\n"
            modules, told = loaded_by("status", home=home.root)
        finally:
            standing_in.kill()
    assert not slow(modules)
    assert "squidbot 7.7: running" in told


def test_what_is_slow_would_be_seen(home):
    """The control: a question that is answered without a daemon."""
    modules, _ = loaded_by("inbox", "list", home=home.root)
    assert slow(modules) >= {"pydantic", "anyio", "gateway.settings"}
    assert modules >= NOT_FOR_STATUS


def test_no_plugin_of_pydantic_is_looked_for(home, tmp_path):
    """Any package that is installed beside squidbot could bring one; whoever wants them says so."""
    told = tmp_path / "spying-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: spying\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[pydantic]\nspying = spying:plugin\n")
    (tmp_path / "spying.py").write_text(
        "class plugin:\n    new_schema_validator = lambda *_, **__: (None,) * 3\n"
    )
    control = subprocess.run(
        [sys.executable, "-c", "import pydantic, sys; pydantic.TypeAdapter(int); sys.exit('spying' in sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert control.returncode == 1
    modules, _ = loaded_by("status", home=home.root, beside=tmp_path)
    assert "spying" not in modules


NOT_AT_THE_START = {
    "agent_core.tools.web.readable_page",
    "agent_core.tools.web.pdf",
    "gateway.operations.http.console.console_server",
    "jsonschema",
    "litellm",
    "mcp",
    "nio",
    "openai",
}


def test_the_daemon_loads_no_cpp_library_and_no_reader_of_pages(home):
    """The library alone is 1 MB, for an extension that nothing needs; the readers are for who uses them."""
    script = """
        import json, sys
        from pathlib import Path
        sys.argv = ["squidbot", "status"]
        from gateway.cli import main
        try:
            main()
        except SystemExit:
            import gateway.app.daemon
            print("\\n" + json.dumps(["libstdc++" in Path("/proc/self/maps").read_text(), sorted(sys.modules)]))
    """

    def loaded(script):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SQUIDBOT_HOME": str(home.root)},
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    has_library, modules = loaded(script)
    assert not has_library
    assert "frozenlist" in modules and "frozenlist._frozenlist" not in modules
    assert not NOT_AT_THE_START & set(modules)
    control = loaded("import frozenlist, json, sys; print(json.dumps(sorted(sys.modules)))")
    assert "frozenlist._frozenlist" in control


NO_MATTER_OF_SETTINGS = {
    "anyio",
    "aiohttp",
    "litellm",
    "loguru",
    "nio",
    "structlog",
    "aioimaplib",
    "aiosmtplib",
}


def test_reading_the_configuration_loads_nobody_who_talks(home):
    """What clients of models, servers and logs are made of takes longer to load than all settings to be read."""
    modules, _ = loaded_by("config show && config schema", home=home.root)
    assert "gateway.settings" in modules
    assert not {name.partition(".")[0] for name in modules} & NO_MATTER_OF_SETTINGS


def test_a_configuration_can_be_named_in_the_environment(home, tmp_path):
    """All commands take $SQUIDBOT_CONFIG for --config; one that is not there is said."""
    other = tmp_path / "other.yaml"
    other.write_text("channels: {}\nagents: {heartbeat: {enabled: false}}\n")
    other.chmod(0o600)

    def shown(config, *arguments):
        return squidbot(home.root, *arguments, environ={"SQUIDBOT_CONFIG": config})

    told = json.loads(shown(str(other), "config", "show", "--json").stdout)
    assert (told["file"], told["settings"]["agents"]["heartbeat"]["enabled"]) == (str(other), False)
    assert json.loads(shown("", "config", "show", "--json").stdout)["file"] == str(home.config_file)
    for arguments in (("status",), ("run",), ("config", "show")):
        done = shown(str(tmp_path / "none.yaml"), *arguments)
        assert done.returncode == 78
        assert "none.yaml" in done.stderr


def test_a_configuration_that_has_changed_is_read(home):
    """It may be why no daemon runs, and what is wrong with it is said."""
    home.config_file.write_text("chanels: {}\n")
    done = squidbot(home.root, "status")
    assert done.returncode == 0
    assert "not running" in done.stdout
    assert "chanels" in done.stderr


def test_the_next_command_is_told_as_it_can_be_typed(tmp_path):
    """The bare name only where the shell finds this very program by it; otherwise the path, quoted if need be."""
    here, other = tmp_path / "my env" / "bin", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir(parents=True)
        (folder / "squidbot").write_text("#!/bin/sh\n")
        (folder / "squidbot").chmod(0o755)
    mine = str(here / "squidbot")
    assert program_command(mine, {"PATH": f"/usr/bin:{here}"}) == "squidbot"
    for path in ("/nowhere", f"{other}:{here}", ""):
        assert program_command(mine, {"PATH": path}) == f"'{mine}'"
    assert program_command(str(ROOT / "gateway" / "__main__.py"), {}).endswith(" -m gateway")
