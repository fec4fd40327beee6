"""
Matrix: `MatrixChannel` and its `MatrixConfig`. Plain and encrypted rooms, text.

``channel`` owns the life, ``sync`` receives, ``sending`` delivers. ``inbound``, ``outbound`` and ``rooms``
are pure, ``gaps``, ``invites``, ``hints`` and ``session`` each do one thing with the `wire.Homeserver`, and
``private`` (the client) and ``private_olm`` (the keys) are the only places that know nio.

Encryption: ``reading`` is what the loop sees of it, ``crypto`` decides when what is asked and given,
``own_device`` keeps our device usable, ``cross_signing`` vouches for it, ``waiting`` holds messages without a
key, ``sas`` and ``verification`` let people verify the bot.
"""
