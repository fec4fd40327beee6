"""
A guest whose mail server answered ``535`` to RCPT, which some mail servers hand through, stopped all mail: it was taken
for a refused login of the bot, after which nobody is sent anything for minutes, and each time twice as long.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.base import ChannelAuthFailed, DeliveryFailed
from channels.email.config import EmailConfig
from tests.clock import LoopClock
from tests.doubles.accounts import email_channel
from tests.unit.channels.email.test_loop_guard import OTHER, THREAD, answer
from tests.unit.channels.email.test_submission import Post, submitter

pytestmark = pytest.mark.virtual_time


async def marked() -> None:
    """The point of no return."""


@pytest.mark.parametrize("code", [530, 534, 535, 538])
@pytest.mark.parametrize("step", ["RCPT", "DATA", "end"])
async def test_it_is_the_recipients_alone(tmp_path: Path, step: str, code: int) -> None:
    """That mail is refused for good, and the next one, to somebody else, goes out at once."""
    post = Post(**{step: f"{code} log in first"})
    async with submitter(post) as other:
        channel = email_channel("email", other._config, state_dir=tmp_path, clock=LoopClock())
        with pytest.raises(DeliveryFailed):
            await channel.deliver(answer(session=OTHER, key="theirs"), uncertain=marked)
        post.answers.clear()
        await channel.deliver(answer(session=THREAD, key="owners"), uncertain=marked)
    assert b"alice@mail.test" in post.taken[-1]


@pytest.mark.parametrize("step", ["AUTH", "MAIL"])
async def test_a_login_that_is_refused_is_not_tried_again(tmp_path: Path, step: str) -> None:
    """The control: what is said of our own account stops everything for a while."""
    post = Post(**{step: "535 who are you"})
    async with submitter(post) as other:
        config: EmailConfig = other._config
        channel = email_channel("email", config, state_dir=tmp_path, clock=LoopClock())
        with pytest.raises(ChannelAuthFailed):
            await channel.deliver(answer(session=OTHER, key="theirs"), uncertain=marked)
        post.answers.clear()
        with pytest.raises(ChannelAuthFailed, match="not tried, because a login was refused"):
            await channel.deliver(answer(session=THREAD, key="owners"), uncertain=marked)
