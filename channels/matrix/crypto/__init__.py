"""End-to-end encryption: devices, keys, identities, verification, undecryptable events."""
