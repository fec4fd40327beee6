"""`Sas`: both sides of an emoji verification agree, and nothing wrong is confirmed."""

from __future__ import annotations

import pytest

from channels.matrix.crypto.cross_signing import canonical_json
from channels.matrix.crypto.key_types import NotReadable
from channels.matrix.crypto.verification import METHOD, Sas, SasFailed

vodozemac = pytest.importorskip("vodozemac")

START = {
    "method": METHOD,
    "from_device": "ALICE",
    "key_agreement_protocols": ["curve25519-hkdf-sha256"],
    "hashes": ["sha256"],
    "message_authentication_codes": ["hkdf-hmac-sha256.v2"],
    "short_authentication_string": ["emoji", "decimal"],
}
THEM, US = ("@alice:hs.test", "ALICE"), ("@bot:hs.test", "BOT")


class Keys:
    """The part of a machine that a verification needs."""

    def new_sas(self):
        return vodozemac.Sas()

    def combine_keys(self, sas, key):
        try:
            return sas.diffie_hellman(vodozemac.Curve25519PublicKey.from_base64(key))
        except Exception as error:
            raise NotReadable(type(error).__name__) from error


def begun(start=START):
    return Sas(Keys(), "t", us=US, them=THEM, start=start, canonical_start=canonical_json(start))


def keyed():
    """Our side after the keys, and theirs."""
    ours, theirs = begun(), vodozemac.Sas()
    their_key = theirs.public_key.to_base64()
    sent, emoji = ours.key({"key": their_key})
    whole = theirs.diffie_hellman(vodozemac.Curve25519PublicKey.from_base64(sent["key"]))
    return ours, whole, emoji, (their_key, sent["key"])


def mac_of(whole, keys):
    info = "MATRIX_KEY_VERIFICATION_MAC" + "".join((*THEM, *US, "t"))
    macs = {key_id: whole.calculate_mac(key, info + key_id) for key_id, key in keys.items()}
    return {"mac": macs, "keys": whole.calculate_mac(",".join(sorted(macs)), f"{info}KEY_IDS")}


def test_both_sides_see_the_same():
    """The emoji are those that the other side computes: seven out of 64."""
    _, whole, emoji, (theirs, ours) = keyed()
    info = "|".join(("MATRIX_KEY_VERIFICATION_SAS", *THEM, theirs, *US, ours, "t"))
    assert len(emoji) == 7
    # The same computation by the other side, down to the words.
    from channels.matrix.crypto.verification import _EMOJI

    assert [_EMOJI[index] for index in whole.bytes(info).emoji_indices] == emoji
    assert len(set(_EMOJI)) == 64


@pytest.mark.parametrize("key", sorted(START.keys() - {"method", "from_device"}))
def test_methods_that_we_do_not_speak_are_refused(key):
    """Whoever offers only something else gets a refusal, not silence."""
    with pytest.raises(SasFailed) as failed:
        begun({**START, key: ["something else"]})
    assert failed.value.code == "m.unknown_method"


def test_a_right_mac_is_believed_and_ours_is_right():
    """Their mac is checked against the key that we know them by; ours covers device and master key."""
    sas, whole, _, _ = keyed()
    sas.check_mac(mac_of(whole, {"ed25519:ALICE": "fingerprint"}), {"ed25519:ALICE": "fingerprint"})
    sent = sas.mac({"ed25519:BOT": "device", "ed25519:master": "master"})
    info = "MATRIX_KEY_VERIFICATION_MAC" + "".join((*US, *THEM, "t"))
    whole.verify_mac("master", f"{info}ed25519:master", sent["mac"]["ed25519:master"])

    assert set(sent["mac"]) == {"ed25519:BOT", "ed25519:master"}


@pytest.mark.parametrize(
    ("signed", "known"),
    [
        ({"ed25519:ALICE": "another key"}, {"ed25519:ALICE": "fingerprint"}),
        ({"ed25519:OTHER": "fingerprint"}, {"ed25519:ALICE": "fingerprint"}),
        ({}, {"ed25519:ALICE": "fingerprint"}),
        ({"ed25519:ALICE": "fingerprint"}, {}),
    ],
)
def test_a_wrong_mac_is_not_believed(signed, known):
    """Another key, another device, none at all, or a device that we do not know: it is cancelled."""
    sas, whole, _, _ = keyed()
    with pytest.raises(SasFailed) as failed:
        sas.check_mac(mac_of(whole, signed), known)
    assert failed.value.code == "m.key_mismatch"


def test_steps_in_the_wrong_order_are_refused():
    """A mac before the keys and a second key are no verification."""
    with pytest.raises(SasFailed):
        begun().check_mac({"mac": {}}, {})
    sas, _, _, (theirs, _) = keyed()
    with pytest.raises(SasFailed):
        sas.key({"key": theirs})
    with pytest.raises(SasFailed):
        begun().key({"key": "no key"})
