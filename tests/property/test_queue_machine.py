"""Whatever is asked of the SQLite store, in whatever order, it answers like the model."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from gateway.store.sql.inbox_store import InboxStore
from gateway.store.sql.outbox_store import OutboxStore
from gateway.store.sql.turn_store import TurnStore
from gateway.store.states import InboxState
from tests.contract.test_queue_catches import SendsDrafts
from tests.property.examples import examples
from tests.property.queue_rules import StoreMachine

_NO_SHRINK = [Phase.generate]

TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=examples(15),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class ForgetsRetryTimes(TurnStore):
    """The control: a store in which the head does not wait for its retry."""

    async def retry(self, turn, error, *, delay_s, deferral):
        await super().retry(turn, error, delay_s=0, deferral=deferral)


class SettlesEarly(OutboxStore):
    """The control: a store that settles a turn with its first answer."""

    async def record_send(self, row, provider_id):
        await super().record_send(row, provider_id)
        spoil = "UPDATE inbox SET state = 'settled' WHERE state = 'answered'"
        await self._writer.call("spoil", lambda db: db.execute(spoil) and None)


class WithdrawsOnlyWhatWaits(InboxStore):
    """The control: a store in which a running turn is answered whatever is taken back."""

    async def accept(self, channel, account, batch, positions, amendments=()):
        running = {row.message.native_id for row in await self.rows(states=[InboxState.RUNNING])}
        kept = [each for each in amendments if each.native_id not in running]
        return await super().accept(channel, account, batch, positions, kept)


class AnswersOldTexts(InboxStore):
    """The control: a store in which a running turn is answered whatever is edited."""

    async def accept(self, channel, account, batch, positions, amendments=()):
        running = {row.message.native_id for row in await self.rows(states=[InboxState.RUNNING])}
        kept = [each for each in amendments if each.kind != "replace" or each.native_id not in running]
        return await super().accept(channel, account, batch, positions, kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [ForgetsRetryTimes, SettlesEarly, WithdrawsOnlyWhatWaits, AnswersOldTexts, SendsDrafts]
)
def test_the_machine_sees_a_broken_store(kind):
    """A store with one defect does not get through."""

    class Broken(StoreMachine):
        pass

    Broken.kind = kind
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Broken,
            settings=settings(
                max_examples=300,
                stateful_step_count=40,
                deadline=None,
                database=None,
                phases=_NO_SHRINK,
                derandomize=True,  # found once is found always
            ),
        )
