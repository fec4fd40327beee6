"""
Matrix: `MatrixChannel` and its `MatrixConfig`. Plain rooms, text; encrypted rooms are left alone.

``channel`` owns the life, ``sync`` receives, ``sending`` delivers. ``inbound``, ``outbound`` and ``rooms``
are pure, ``gaps``, ``invites``, ``hints`` and ``session`` each do one thing with the `wire.Homeserver`, and
``private`` is the only place that knows nio.
"""
