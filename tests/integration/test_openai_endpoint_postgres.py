"""The endpoint of a home whose state is in PostgreSQL: tokens and answers are on the next machine, too."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from tests.command_line import squidbot
from tests.daemon import Daemon
from tests.openai_endpoint import endpoint_settings, make_token
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200, func_only=True)]


def ask(daemon: Daemon, token: str, text: str, key: str) -> str | None:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=token, max_retries=0, timeout=120) as client:
        made = client.chat.completions.create(
            model="squidbot",
            messages=[{"role": "user", "content": text}],
            extra_headers={"Idempotency-Key": key},
        )
    return made.choices[0].message.content


def test_the_next_machine_knows_the_token_and_the_answer(postgres: PostgresServer, tmp_path: Path) -> None:
    """A standby lets nobody in; after the takeover it gives the first machine's answer, and obeys a revocation."""
    store = {"store": postgres.with_tables(), "state_key": "a-state-key-of-the-tests"}
    homes = [tmp_path / "one", tmp_path / "two"]
    first, second = (Daemon(home, endpoint_settings(gateway=store)) for home in homes)
    with first, second:
        first.up()
        token = make_token(first)
        answer = ask(first, token, "hello", "k")
        second.start()
        second.wait_until(lambda: second.asked("/livez")[0] == 200)
        with pytest.raises(openai.InternalServerError) as refused:
            ask(second, token, "hello", "k")
        assert (refused.value.status_code, refused.value.response.headers["Retry-After"]) == (503, "10")
        first.kill()
        second.wait_until(lambda: "'api'" in str(second.asked("/readyz")[1].get("up")))
        assert ask(second, token, "hello", "k") == answer
        assert ask(second, token, "hello again", "k2")
        assert squidbot(second.home, "tokens", "revoke", "phone").returncode == 0
        with pytest.raises(openai.AuthenticationError):
            ask(second, token, "hello", "k3")
