"""
The state of an account's encryption as its homeserver shows it, for ``squidbot check``. Three questions, none
of which changes anything: what is published of our keys, how many one-time keys are left (an upload of
nothing tells), and whether somebody keeps a backup of room keys there. The store of keys is not touched, so
it can be asked beside a daemon and without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from channels.base import AccountFinding, ChannelUnavailable
from channels.matrix.client.homeserver import (
    CLIENT,
    Homeserver,
    HttpAnswer,
    LinkBroken,
    channel_error,
    unreachable,
)
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.crypto.cross_signing import canonical_json, public_key


@dataclass(frozen=True, slots=True)
class AccountCheck:
    """
    The encryption state of the account at its homeserver.

    ``keys_published``: others can encrypt for this device; ``identity``: a cross-signing identity exists;
    ``signed``: it has signed this device; ``one_time_keys``: their number left; ``backup``: its version, or
    "".
    """

    device: str
    keys_published: bool
    identity: bool
    signed: bool
    one_time_keys: int
    backup: str

    def as_dict(self) -> dict[str, Any]:
        """Return the check as a JSON object."""
        return asdict(self)


async def check_account(homeserver: Homeserver) -> AccountCheck:
    """Ask the homeserver. Raises `ChannelError`."""
    credentials = homeserver.credentials
    if credentials is None:
        raise ChannelUnavailable("not logged in")
    user_id, device_id = credentials.user_id, credentials.device_id
    published = await _asked(homeserver, "POST", "keys/query", {"device_keys": {user_id: []}})
    counts = await _asked(homeserver, "POST", "keys/upload", {})
    backup = await _asked(homeserver, "GET", "room_keys/version", None, may_lack=True)
    device = object_of(object_of(published.body, "device_keys"), user_id).get(device_id)
    device = device if isinstance(device, dict) else {}
    master = object_of(object_of(published.body, "master_keys"), user_id)
    signer = object_of(object_of(published.body, "self_signing_keys"), user_id)
    left = object_of(counts.body, "one_time_key_counts").get("signed_curve25519", 0)
    return AccountCheck(
        device=device_id,
        keys_published=bool(device),
        identity=bool(public_key(master)),
        signed=_is_signed(signer, user_id, public_key(master))
        and _is_signed(device, user_id, public_key(signer)),
        one_time_keys=left if isinstance(left, int) else 0,
        backup=text_of(backup.body, "version") if backup.is_success else "",
    )


async def _asked(
    homeserver: Homeserver, method: str, path: str, body: JsonObject | None, *, may_lack: bool = False
) -> HttpAnswer:
    try:
        answer = await homeserver.request(method, f"{CLIENT}/{path}", body)
    except LinkBroken as error:
        raise unreachable(error) from error
    if answer.is_success or (may_lack and answer.status == 404):
        return answer
    raise channel_error(answer)


def _is_signed(value: JsonObject, user_id: str, key: str) -> bool:
    """Return True if the account's key has signed the value; the signature is verified."""
    import vodozemac  # noqa: PLC0415 - nio is imported late, and so is this

    signature = text_of(object_of(object_of(value, "signatures"), user_id), f"ed25519:{key}")
    if not key or not signature:
        return False
    try:
        theirs = vodozemac.Ed25519Signature.from_base64(signature)
        vodozemac.Ed25519PublicKey.from_base64(key).verify_signature(canonical_json(value), theirs)
    except (vodozemac.SignatureException, vodozemac.KeyException, ValueError):
        return False
    return True


def encryption_findings(found: Mapping[str, Any], *, running: bool) -> list[AccountFinding]:
    """
    Say what is wrong with the state of an account, and what to do; pure.

    Where no daemon is ``running``, keys that are missing are no more than what it does at its first start.
    """
    device, again, findings = found["device"], "squidbot matrix reset-device", list[AccountFinding]()
    add = partial(AccountFinding, "encryption")
    if not found["keys_published"]:
        remedy = f"start the daemon, which publishes them; if that does not help: {again}"
        text = f"nobody can encrypt for the device {device}: its keys are not published"
        findings.append(add("fail", text, again) if running else add("warn", text, remedy))
    elif not found["identity"]:
        text = "the account has no cross-signing identity: Element shows a red shield"
        remedy = "give squidbot the account's password; it creates the identity when it starts"
        findings.append(add("warn", text, remedy))
    elif not found["signed"]:
        text = f"the device {device} is not signed by the account's identity"
        remedy = "restart the daemon; if the log says matrix.identity_foreign, docs/matrix.md says what to do"
        findings.append(add("warn", text, remedy))
    left = found["one_time_keys"]
    if found["keys_published"] and left < 5:
        text = f"only {left} one-time keys are left at the server, so new conversations may not be readable"
        findings.append(add("warn", text, "the running daemon uploads more; is it running?"))
    backup = found["backup"]
    told = f"a key backup of version {backup} is there" if backup else "no key backup there, none is needed"
    fine = add("ok", f"the device {device} is published and signed, {left} one-time keys; {told}")
    return findings or [fine]
