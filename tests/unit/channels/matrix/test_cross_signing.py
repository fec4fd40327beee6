"""The account's identity: kept, found again, and never mistaken for one when the file is damaged."""

from __future__ import annotations

import pytest

from channels.matrix.crypto.cross_signing import CrossSigning, _Key, canonical_json

vodozemac = pytest.importorskip("vodozemac")


def test_keys_are_kept_for_the_owner_alone(tmp_path):
    """What is stored is found again, the same keys, in a file that only the owner can read."""
    signing = CrossSigning(None, None, tmp_path)
    keys = {role: _Key() for role in ("master", "self_signing", "user_signing")}
    signing._store(keys)
    again = signing._load()

    assert {role: key.public for role, key in again.items()} == {
        role: key.public for role, key in keys.items()
    }
    assert (tmp_path / "cross_signing.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"master": 5}', '{"master": "x", "self_signing": "x"}', "null"]
)
def test_a_damaged_file_is_no_identity(tmp_path, text):
    """Whatever is in the file, it is the right keys or none."""
    (tmp_path / "cross_signing.json").write_text(text)

    assert CrossSigning(None, None, tmp_path)._load() is None


def test_signatures_leave_out_what_others_add():
    """A signature covers the object without signatures and unsigned parts, and nothing else verifies."""
    key = _Key()
    public = vodozemac.Ed25519PublicKey.from_base64(key.public)
    value = {"b": 1, "a": "ü", "signatures": {"x": 1}, "unsigned": {"age": 5}}
    signature = vodozemac.Ed25519Signature.from_base64(key.sign(value))
    public.verify_signature('{"a":"ü","b":1}'.encode(), signature)

    assert canonical_json(value) == '{"a":"ü","b":1}'.encode()
    with pytest.raises(vodozemac.SignatureException):
        public.verify_signature(b'{"a":"u","b":1}', signature)
