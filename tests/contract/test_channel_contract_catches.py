"""The negative controls: channels with one defect each, and the test of the contract that sees it."""

from __future__ import annotations

import inspect
import secrets
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from agent_core.messages import SessionKey
from channels.base import ChannelError, LinkState, Receipt, Redelivery
from tests.contract import channel as contract
from tests.contract.test_loopback_channel import LoopbackFarSide
from tests.doubles.loopback import Delivered, LoopbackChannel, LoopbackServer


class AcknowledgesFirst(LoopbackChannel):
    """Tells the server "got it" before anything is safe."""

    async def _receive(self, inbox, link):
        inbox.report(LinkState.UP)
        after = 0
        while True:
            batch = await self._server.fetch(link, after, limit=100, wait_s=30)
            if batch:
                after = batch[-1].sequence
                await self._server.acknowledge(link, after)
                await inbox.accept([self._inbound(said) for said in batch], {"next": str(after)})


class NamesAnew(LoopbackChannel):
    """Gives a message another native id whenever it is read."""

    def _inbound(self, said):
        return super()._inbound(said).model_copy(update={"native_id": secrets.token_hex()})


class KeepsNoPosition(NamesAnew):
    """Relies on the acknowledgement alone, and cannot recognise a repetition."""

    async def _receive(self, inbox, link):
        class Forgetting:
            position = inbox.position
            report = inbox.report

            async def accept(self, messages, positions=None):
                await inbox.accept(messages)

        await super()._receive(Forgetting(), link)


class UpAtOnce(LoopbackChannel):
    """Says UP as soon as it is connected."""

    async def _receive(self, inbox, link):
        inbox.report(LinkState.UP)
        await super()._receive(inbox, link)


class Backwards(LoopbackChannel):
    """Hands a batch over in the wrong order."""

    async def _receive(self, inbox, link):
        class Reversing:
            position = inbox.position
            report = inbox.report

            async def accept(self, messages, positions=None):
                await inbox.accept(list(reversed(messages)), positions)

        await super()._receive(Reversing(), link)


class SwallowsCancellation(LoopbackChannel):
    """Returns as if nothing had happened when it is cancelled."""

    async def run(self, inbox):
        try:
            await super().run(inbox)
        except anyio.get_cancelled_exc_class():
            return


class LeaksErrors(LoopbackChannel):
    """Lets a library's exception out."""

    async def run(self, inbox):
        try:
            await super().run(inbox)
        except ChannelError as error:
            raise ConnectionResetError("peer") from error


class GoesQuiet(LoopbackChannel):
    """Does not notice that the link is lost."""

    async def run(self, inbox):
        try:
            await super().run(inbox)
        except ChannelError:
            inbox.report(LinkState.UP)
            await anyio.sleep_forever()


class KeyPerTry(LoopbackChannel):
    """Makes a new key for every try."""

    async def deliver(self, message, *, uncertain):
        tried = message.model_copy(update={"id": secrets.token_hex()})
        return await super().deliver(tried, uncertain=uncertain)


class UncertainAfterwards(LoopbackChannel):
    """Records that the server may have the message when it has it."""

    async def deliver(self, message, *, uncertain):
        async def nothing():
            pass

        receipt = await super().deliver(message, uncertain=nothing)
        await uncertain()
        return receipt


class NeverUncertain(LoopbackChannel):
    """Records nothing."""

    async def deliver(self, message, *, uncertain):
        async def nothing():
            pass

        return await super().deliver(message, uncertain=nothing)


class UncertainTooEarly(LoopbackChannel):
    """Makes a message uncertain although there is no server to talk to."""

    async def deliver(self, message, *, uncertain):
        await uncertain()

        async def nothing():
            pass

        return await super().deliver(message, uncertain=nothing)


class HidesLostAnswers(LoopbackChannel):
    """Takes a lost answer for a success."""

    async def deliver(self, message, *, uncertain):
        try:
            return await super().deliver(message, uncertain=uncertain)
        except ChannelError:
            return Receipt("hoped")


class FindsNothing(LoopbackChannel):
    """Looks, and never finds."""

    async def probe(self, message):
        return None


class FindsByText(LoopbackChannel):
    """Takes an equal text for the same message."""

    async def probe(self, message):
        self._connected()
        found = [d for d in self._server.delivered if d.text == message.text]
        return Receipt(found[0].provider_id) if found else None


class SendsToEverybody(LoopbackChannel):
    """Sends an answer to all conversations it knows."""

    async def deliver(self, message, *, uncertain):
        await uncertain()
        for person in ("alice", "bob"):
            copy = Delivered(key=message.id + person, conversation=f"dm-{person}", text=message.text)
            receipt = Receipt(await self._server.take(self._connected(), copy))
        return receipt


class OneSession(LoopbackChannel):
    """Puts everybody into one session."""

    def _inbound(self, said):
        return super()._inbound(said).model_copy(update={"session": SessionKey(self.name, "dm-alice")})


class RaisesHints(LoopbackChannel):
    """Shows work only while it is connected, and says so loudly."""

    async def typing(self, session, *, on):
        self._connected()


class MarksLoudly(LoopbackChannel):
    """Marks messages only while it is connected, and says so loudly."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.capabilities = replace(self.capabilities, acknowledgements=True)

    async def acknowledge(self, session, context, stage):
        self._connected()


class CannotMark(LoopbackChannel):
    """Says that it can mark messages, and has no way to do it."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.capabilities = replace(self.capabilities, acknowledgements=True)


class ClosesOnce(LoopbackChannel):
    """Cannot be closed again."""

    async def aclose(self):
        del self._server


_R, _L, _O = contract.ReceivingContract, contract.LinkContract, contract.LoginContract
_D, _A, _P = contract.DeliveryContract, contract.LostAnswerContract, contract.ProbeContract
SAME, PROBE = Redelivery.SAME_KEY, Redelivery.PROBE
CASES = [
    (AcknowledgesFirst, SAME, _R.test_what_was_not_accepted_comes_again_after_a_restart),
    (AcknowledgesFirst, SAME, _R.test_what_was_refused_comes_again),
    (NamesAnew, SAME, _R.test_what_was_not_accepted_comes_again_after_a_restart),
    (KeepsNoPosition, SAME, _R.test_what_was_accepted_but_not_acknowledged_is_the_same_message_again),
    (UpAtOnce, SAME, _R.test_up_is_reported_only_after_everything_that_waited_is_accepted),
    (Backwards, SAME, _R.test_what_waits_and_what_comes_later_is_handed_over_in_order),
    (SwallowsCancellation, SAME, _R.test_cancellation_ends_it_at_once_and_cleanly),
    (LeaksErrors, SAME, _L.test_a_lost_link_ends_the_run),
    (LeaksErrors, SAME, _O.test_a_refused_login_needs_the_operator),
    (GoesQuiet, SAME, _L.test_a_lost_link_ends_the_run),
    (UncertainTooEarly, SAME, _L.test_without_a_server_nothing_is_delivered_and_nothing_uncertain),
    (KeyPerTry, SAME, _D.test_the_same_message_again_is_one_message),
    (KeyPerTry, PROBE, _D.test_the_same_message_again_is_one_message),
    (KeyPerTry, SAME, _A.test_a_lost_answer_is_uncertain_and_the_message_stays_one),
    (KeyPerTry, SAME, _A.test_a_delivery_cut_in_the_middle_stays_one_message),
    (UncertainAfterwards, SAME, _D.test_uncertain_comes_before_the_effect),
    (UncertainAfterwards, SAME, _D.test_nothing_is_sent_when_uncertain_cannot_be_recorded),
    (NeverUncertain, SAME, _D.test_uncertain_comes_before_the_effect),
    (HidesLostAnswers, SAME, _A.test_a_lost_answer_is_uncertain_and_the_message_stays_one),
    (HidesLostAnswers, SAME, contract.RefusalContract.test_a_refused_message_fails_for_good),
    (FindsNothing, PROBE, _P.test_it_finds_what_was_taken),
    (FindsNothing, PROBE, _P.test_it_does_not_guess),
    (FindsByText, PROBE, _P.test_it_does_not_find_what_was_never_taken),
    (SendsToEverybody, SAME, contract.PrivacyContract.test_an_answer_goes_to_its_session_alone),
    (OneSession, SAME, contract.PrivacyContract.test_messages_keep_their_sessions_apart),
    (RaisesHints, SAME, contract.CloseContract.test_hints_never_raise),
    (MarksLoudly, SAME, contract.CloseContract.test_hints_never_raise),
    (CannotMark, SAME, contract.CloseContract.test_hints_never_raise),
    (ClosesOnce, SAME, contract.CloseContract.test_closing_twice_is_closing_once),
]
SEEN_BY_THE_TEST = (AssertionError, TimeoutError, AttributeError, pytest.fail.Exception)


class _Everything(
    _R,
    _L,
    _O,
    _D,
    contract.RefusalContract,
    _A,
    _P,
    contract.PrivacyContract,
    contract.CloseContract,
):
    def __init__(self, make, redelivery) -> None:
        self.make = make
        self.redelivery = redelivery

    @asynccontextmanager
    async def far_side(self):
        far = LoopbackFarSide(LoopbackServer(redelivery=self.redelivery), self.make)
        far.patience_s = 0.3
        yield far


@pytest.mark.parametrize(
    ("naive", "redelivery", "check"),
    CASES,
    ids=[f"{naive.__name__}-{redelivery}-{check.__name__}" for naive, redelivery, check in CASES],
)
async def test_a_naive_channel_is_caught(naive, redelivery, check):
    """The test fails on the channel with the defect, and passes on the one without."""
    with pytest.raises(SEEN_BY_THE_TEST):
        await check(_Everything(naive, redelivery))
    sound = redelivery if check.__qualname__.split(".")[0] != "ProbeContract" else Redelivery.PROBE
    await check(_Everything(LoopbackChannel, sound))


def test_every_naive_channel_is_used():
    """No defect is defined here without a test that sees it."""
    here = {
        thing
        for thing in globals().values()
        if inspect.isclass(thing) and issubclass(thing, LoopbackChannel) and thing is not LoopbackChannel
    }
    assert here == {naive for naive, _, _ in CASES}
