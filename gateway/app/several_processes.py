"""
Composition root for several processes on one database: which accounts this process has.

`gateway.app` calls it, and only `gateway.app`.
"""

from __future__ import annotations

from gateway.app.environment import Configured, Environment
from gateway.app.queue import Membership
from gateway.proactive.owner_contact import OwnerContact
from gateway.queue.stores import Queue
from gateway.routing.access import LOCAL_CHANNELS
from gateway.supervision.accounts import Accounts


def build_share(
    env: Environment, queue: Queue, membership: Membership | None, accounts: Configured, contact: OwnerContact
) -> Accounts | None:
    """The accounts that this process takes under its lease; None: there is one process, which has all."""
    if membership is None:
        return None
    names = [name for name in accounts if name not in LOCAL_CHANNELS]
    of_owner = [name for name in names if env.access.owner_on(name)]
    share = Accounts(
        queue.maintenance,
        membership.lease,
        {name: accounts[name][0].account for name in names},
        together=of_owner if env.settings.owner.conversation == "shared" else (),
        look_every_s=env.overrides.lease.retried_s,
        drain_s=env.settings.gateway.drain_seconds,
        owners=contact.channel,
        others=membership.others,
    )
    share.tell_of(env.wakeups)
    return share
