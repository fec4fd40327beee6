"""What an operator does with jobs: `squidbot cron`, with its errors in plain words."""

from __future__ import annotations

import pytest

from agent_core.messages import SessionKey
from gateway.errors import NotFound
from gateway.operations.job_operations import schedule_context
from gateway.operations.operation_arguments import RequestInvalid
from gateway.operations.operation_context import OperationContext
from gateway.store.model import JobState
from tests.clock import ManualClock
from tests.integration.schedule_world import START, made, said, scheduled
from tests.proactive_world import ANN, BOB


class TestCommands:
    async def test_the_operator_adds_changes_runs_and_removes(self, tmp_path):
        """What ``squidbot cron`` does, with its errors in plain words."""
        clock = ManualClock(START)
        async with scheduled(tmp_path, clock) as home:
            await home.asked(ANN, "hello")
            planned = schedule_context(home.built.proactive, home.built.conversations)
            call = OperationContext(home.built.store, home.built.memory, planned=planned).call
            added = (await call("cron_add", {"text": "stand up", "every": "1h"}))["job"]
            assert (added["when"], added["session"]) == ("every hour", str(SessionKey("matrix", f"dm-{ANN}")))
            assert (await call("cron_pause", {"id": added["id"]}))["job"]["state"] == "paused"
            assert (await call("cron_resume", {"id": added["id"]}))["job"]["state"] == "active"
            await call("cron_run", {"id": added["id"].upper()})
            await home.chat.answers(2, conversation=f"dm-{ANN}")
            assert [one["id"] for one in (await call("cron_list", {}))["jobs"]] == [added["id"]]
            assert (await call("cron_remove", {"id": added["id"]}))["changed"]
            assert (await call("cron_list", {"every": True}))["jobs"] == []
            for wrong, said_ in (
                ({"text": "x"}, "with exactly one of"),
                ({"text": " ", "at": "09:00"}, "text is empty"),
                ({"text": "x" * 1_000_000, "at": "09:00"}, "has 1000000 characters"),
                ({"text": "x", "cron": "0,0," * 60 + "0 9 * * *"}, "200 characters"),
                ({"text": "x", "at": "25:00"}, "as a time; write for example"),
                ({"text": "x", "cron": "x"}, "five fields"),
                ({"text": "x", "at": "09:00", "zone": "Mars"}, "unknown time zone"),
                ({"text": "x", "after": "soon"}, "as a time; write for example"),
                ({"text": "x", "at": "09:00", "every": "2h"}, "with exactly one of"),
            ):
                with pytest.raises(RequestInvalid, match=said_):
                    await call("cron_add", wrong)
            with pytest.raises(NotFound):
                await call("cron_run", {"id": "nope"})
        assert said(home, ANN)[1] == "stand up"


def operations(home) -> OperationContext:
    return OperationContext(
        home.built.store,
        home.built.memory,
        planned=schedule_context(home.built.proactive, home.built.conversations),
    )


class TestOperator:
    async def test_a_paused_job_runs_when_it_is_told_to(self, tmp_path):
        """`cron run` means now; the job stays paused. That squidbot runs is not a matter of the heartbeat."""
        async with scheduled(tmp_path) as home:
            await home.asked(BOB, "hello")
            job = await made(home, "stretch")
            call = operations(home).call
            await call("cron_pause", {"id": job.id})
            assert (await call("cron_run", {"id": job.id}))["running"] is True
            seen = await home.chat.answers(2, conversation=f"dm-{BOB}")
            assert (await home.plans.job(job.id)).state is JobState.PAUSED
        assert seen[1].text == "stretch"

    async def test_where_jobs_are_switched_off_none_is_taken(self, tmp_path):
        """Nothing is kept that would never run, and it is said why."""
        async with scheduled(tmp_path, schedule={"enabled": False}) as home:
            await home.asked(ANN, "hello")
            with pytest.raises(RequestInvalid, match=r"agents\.schedule\.enabled is false"):
                await operations(home).call("cron_add", {"text": "x", "at": "09:00"})
