"""
Matrix: `MatrixChannel` and its `MatrixConfig`, for plain and encrypted rooms.

``channel`` owns the life, ``channel_setup`` puts it together, ``admin`` is the operator's view. ``client``
holds the requests to the homeserver, ``sync`` receives, ``sending`` delivers, ``rooms`` knows what is known
about rooms, ``events`` says what events mean (pure), and ``encryption`` holds the keys. ``client.nio_client``
and ``encryption.olm_machine`` with ``olm_store`` are the places that know nio.
"""
