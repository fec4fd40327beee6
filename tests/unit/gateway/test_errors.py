"""Every error of the project can be looked at in one way."""

from __future__ import annotations

import pytest

from agent_core.errors import ModelRateLimited
from channels.base import ChannelAuthFailed, ChannelUnavailable
from gateway.errors import (
    AlreadyRunning,
    ConfigInvalid,
    GatewayError,
    StateUnusable,
    describe,
    leaves,
)
from gateway.store.stores import LostTurn, StoreUnavailable


@pytest.mark.parametrize(
    ("error", "temporary"),
    [
        (ModelRateLimited("429", retry_after_s=3), True),
        (ChannelUnavailable("refused"), True),
        (ChannelAuthFailed("401"), False),
        (StoreUnavailable("disk full"), True),
        (LostTurn("gone"), False),
        (ConfigInvalid("line 3"), False),
    ],
)
def test_errors_of_all_packages_have_one_shape(error, temporary):
    """An error of any package says whether to try again, what a stranger may read, and what to log."""
    told = describe(error)
    assert told.temporary is temporary
    assert told.public
    assert told.public != str(error)
    assert told.fields["error"] == type(error).__name__
    assert told.fields["detail"] == str(error)


def test_unknown_errors_follow_the_callers_default_and_tell_strangers_nothing():
    """What an unknown exception says never reaches a stranger."""
    error = KeyError("/etc/squidbot/secret")
    assert describe(error).temporary is False
    assert describe(error, temporary=True).temporary is True
    assert "secret" not in describe(error).public


def test_a_group_speaks_through_its_first_known_error():
    """Of a group, the error that knows what it means decides, not the accident beside it."""
    group = ExceptionGroup("", [ValueError("x"), ExceptionGroup("", [ChannelAuthFailed("wrong password")])])
    assert describe(group).fields["error"] == "ChannelAuthFailed"
    assert [type(leaf).__name__ for leaf in leaves(group)] == ["ValueError", "ChannelAuthFailed"]


def test_the_cause_is_in_the_fields():
    """A translated error still names what it was made of."""
    try:
        try:
            raise ConnectionResetError("peer")
        except ConnectionResetError as cause:
            raise ChannelUnavailable("lost", host="h") from cause
    except ChannelUnavailable as error:
        fields = describe(error).fields
    assert fields["cause"] == "ConnectionResetError"
    assert fields["host"] == "h"


def test_exit_codes_are_those_that_a_service_manager_knows():
    """A configuration error and a second instance must not be restarted, a full disk may be."""
    assert ConfigInvalid().exit_code == AlreadyRunning().exit_code == 78
    assert StateUnusable().exit_code == 74
    assert (GatewayError().temporary, GatewayError(place=1).fields) == (False, {"place": 1})
    assert GatewayError().public == "The gateway cannot continue."
