"""What a machine asks: alive, ready, metrics, status; over real sockets."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from channels.base import LinkState
from channels.status import ChannelStatus
from gateway.errors import ListenFailed
from gateway.observability import metrics
from gateway.operations.http import health
from gateway.operations.http.health import Health, serve
from gateway.store.stores import StoreStats
from tests.clock import EPOCH


def channel(name, state, detail=""):
    return ChannelStatus(name, "@bot:hs.test", state, EPOCH, detail=detail)


async def no_status():
    return {}


@asynccontextmanager
async def served(health, *, host="127.0.0.1"):
    async with (
        serve(health.app(host=host), host="127.0.0.1", port=0) as port,
        aiohttp.ClientSession() as client,
    ):

        async def get(path, **options):
            async with client.get(f"http://127.0.0.1:{port}{path}", **options) as answer:
                return answer.status, (
                    await answer.json() if "json" in answer.content_type else await answer.text()
                )

        yield get


class TestReadiness:
    async def test_ready_means_every_channel_is_up(self):
        """200 only then; otherwise 503 that says which one and why."""
        statuses = [
            channel("matrix", LinkState.UP),
            channel("email", LinkState.CATCHING_UP, "40 mails to go"),
        ]
        async with served(Health(lambda: statuses, no_status)) as get:
            code, told = await get("/readyz")
            assert (code, told["ready"], told["up"]) == (503, False, ["matrix"])
            assert told["waiting"]["email"]["state"] == "catching_up"
            assert told["waiting"]["email"]["detail"] == "40 mails to go"
            statuses[1] = channel("email", LinkState.UP)
            assert (await get("/readyz"))[0] == 200

    @pytest.mark.parametrize("state", [state for state in LinkState if state is not LinkState.UP])
    async def test_every_other_state_is_not_ready(self, state):
        """Connected but behind is not ready either."""
        async with served(Health(lambda: [channel("matrix", state)], no_status)) as get:
            assert (await get("/readyz"))[0] == 503

    async def test_a_daemon_that_is_starting_is_alive_and_not_ready(self):
        """Recovery comes first."""
        async with served(Health(list, no_status, started=lambda: False)) as get:
            assert (await get("/readyz"))[0] == 503
            assert await get("/livez") == (200, {"alive": True})

    async def test_a_daemon_without_channels_is_ready(self):
        """There is nothing to wait for."""
        async with served(Health(list, no_status)) as get:
            assert (await get("/readyz"))[0] == 200


class TestStatus:
    async def test_the_report_is_told(self):
        """Whatever JSON can hold, and dates."""

        async def status():
            return {"inbox": {"ready": 1}, "at": EPOCH}

        async with served(Health(list, status)) as get:
            assert await get("/status") == (200, {"inbox": {"ready": 1}, "at": "2026-01-01T00:00:00+00:00"})

    async def test_a_report_that_fails_does_not_tell_why(self):
        """The log has it; whoever asks gets 503."""

        async def status():
            raise OSError("/srv/secret/place")

        async with served(Health(list, status)) as get:
            code, told = await get("/status")
            assert code == 503
            assert "secret" not in str(told)

    async def test_a_report_that_hangs_is_given_up(self, monkeypatch):
        """A stuck store does not collect waiting requests."""

        async def status():
            await anyio.sleep_forever()

        monkeypatch.setattr(health, "_LIMIT_S", 0.05)
        async with served(Health(list, status)) as get:
            assert (await get("/status"))[0] == 503


class TestMetrics:
    async def test_channels_and_store_are_gauges_in_a_text_that_prometheus_reads(self):
        """Brought up to date at every question."""

        async def refresh():
            metrics.show_store(
                StoreStats(
                    {"ready": 3},
                    {"pending": 2},
                    oldest_unanswered_s=7.5,
                    oldest_unsent_s=None,
                    journal_lines=0,
                )
            )

        statuses = [channel("matrix", LinkState.UP), channel("email", LinkState.DOWN)]
        async with served(Health(lambda: statuses, no_status, refresh=refresh)) as get:
            code, text = await get("/metrics")
        assert code == 200
        samples = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert samples["squidbot_channel_up", "matrix"] == 1
        assert samples["squidbot_channel_up", "email"] == 0
        assert samples["squidbot_oldest_seconds", "inbox"] == 7.5
        assert samples["squidbot_oldest_seconds", "outbox"] == 0
        assert samples["squidbot_queue_rows", "inbox", "ready"] == 3
        assert samples["process_resident_memory_bytes",] > 0

    async def test_a_store_that_fails_leaves_the_old_numbers(self):
        """Metrics are told even while the disk is full."""

        async def refresh():
            raise OSError("full")

        async with served(Health(list, no_status, refresh=refresh)) as get:
            assert (await get("/metrics"))[0] == 200


class TestGuards:
    async def test_a_web_page_cannot_ask_through_a_name_of_its_own(self):
        """A name that points at 127.0.0.1 is refused on this machine's own address."""
        async with served(Health(list, no_status)) as get:
            assert (await get("/status", headers={"Host": "evil.example"}))[0] == 403
            assert (await get("/status", headers={"Host": "localhost:1"}))[0] == 200
        async with served(Health(list, no_status), host="0.0.0.0") as get:
            assert (await get("/status", headers={"Host": "squidbot:8811"}))[0] == 200

    async def test_nothing_else_is_there(self):
        """No other path, no other method."""
        async with served(Health(list, no_status)) as get:
            assert (await get("/"))[0] == 404
            assert (await get("/op/status"))[0] == 404

    async def test_a_port_that_is_taken_is_told_with_the_key(self):
        """The operator learns which key to change; a service manager may try again."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(ListenFailed, match=f"gateway.http.listen: 127.0.0.1:{port}") as caught:
                async with serve(Health(list, no_status).app(host="127.0.0.1"), host="127.0.0.1", port=port):
                    pass
        assert caught.value.exit_code == 74


async def test_a_stuck_turn_runner_is_not_alive():
    """503 with the reason while turns stand still, 200 before and after."""
    stuck: list[str] = []
    health = Health(list, no_status, stuck=lambda: stuck[0] if stuck else None)
    async with served(health) as get:
        assert await get("/livez") == (200, {"alive": True})
        stuck.append("no turn begins")
        assert await get("/livez") == (503, {"alive": False, "detail": "no turn begins"})
        stuck.clear()
        assert (await get("/livez"))[0] == 200
