"""
The endpoint as the real Open WebUI uses it. It takes gigabytes, so it is no part of the environment: put it into one of
its own (``uv pip install open-webui``) and name its program in ``SQUIDBOT_OPEN_WEBUI``. Of its packages torch and
those of NVIDIA are not needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from tests.command_line import free_port
from tests.daemon import Daemon
from tests.openai_endpoint import endpoint_settings, history_of, make_token

PROGRAM = os.environ.get("SQUIDBOT_OPEN_WEBUI", "")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.skipif(not PROGRAM, reason="SQUIDBOT_OPEN_WEBUI names no program"),
]


class OpenWebUI:
    """It runs, and somebody has signed up."""

    def __init__(self, folder, daemon, token):
        self.url = f"http://127.0.0.1:{free_port()}"
        self._token = ""
        more = {
            "DATA_DIR": str(folder),
            "WEBUI_SECRET_KEY": "of-the-tests",
            "OPENAI_API_BASE_URL": f"{daemon.url}/v1",
            "OPENAI_API_KEY": token,
            "ENABLE_FORWARD_USER_INFO_HEADERS": "true",
            "ENABLE_OLLAMA_API": "false",
            "RAG_EMBEDDING_ENGINE": "openai",
            "AUDIO_STT_ENGINE": "openai",
            "OFFLINE_MODE": "true",
            "HF_HUB_OFFLINE": "1",
        }
        words = ["serve", "--host", "127.0.0.1", "--port", self.url.rpartition(":")[2]]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
        self._log = (folder / "log").open("w")
        self._process = subprocess.Popen(
            [PROGRAM, *words], env=environment, cwd=folder, stdout=self._log, stderr=self._log
        )

    def __enter__(self):
        while not self._is_up():
            assert self._process.poll() is None, "it has ended"
            time.sleep(1)
        person = {"name": "Ann", "email": "ann@example.org", "password": "password1234"}
        self._token = json.loads(self.ask("/api/v1/auths/signup", person))["token"]
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait(120)
        self._log.close()

    def _is_up(self):
        try:
            return bool(self.ask("/health"))
        except urllib.error.HTTPError:
            raise
        except OSError:
            return False

    def ask(self, path, body=None):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.read().decode()

    def say(self, text, **more):
        message = {"role": "user", "content": text}
        return self.ask("/api/chat/completions", {"model": "squidbot", "messages": [message], **more})


def test_its_models_answers_and_chats(tmp_path):
    """The model is in its list, answers come at once and as a stream, and each of its chats is a conversation."""
    (tmp_path / "webui").mkdir()
    with Daemon(tmp_path / "home", endpoint_settings()) as daemon:
        daemon.up()
        token = make_token(daemon)
        with OpenWebUI(tmp_path / "webui", daemon, token) as webui:
            assert [one["id"] for one in json.loads(webui.ask("/api/models"))["data"]] == ["squidbot"]
            whole = json.loads(webui.say("hello", stream=False))
            assert "Hello!" in whole["choices"][0]["message"]["content"]
            assert webui.say("hello", stream=True).rstrip().endswith("data: [DONE]")
            empty = {"title": "t", "models": ["squidbot"], "messages": [], "history": {"messages": {}}}
            chat = json.loads(webui.ask("/api/v1/chats/new", {"chat": empty}))["id"]
            known = "You told me earlier:\\n\\n> my colour is vermilion7"
            for text, told in (("my colour is vermilion7", "You wrote"), ("what is my colour?", known)):
                webui.say(text, stream=True, chat_id=chat, id=f"message {text}")  # the answer is on its page
                daemon.wait_until(lambda told=told: told in history_of(daemon.home))
            assert token not in daemon.log()
