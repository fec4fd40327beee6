"""
Matrix: `MatrixChannel` and its `MatrixConfig`, for plain and encrypted rooms.

``channel`` owns the lifetime, ``channel_setup`` starts a run, ``admin`` is the operator's view. ``client``
contains the requests to the homeserver, ``sync`` receives, ``sending`` delivers, ``rooms`` tracks the state
of rooms, ``events`` interprets events (pure), and ``encryption`` has the keys. Only ``client.nio_client``
and ``encryption.olm_machine`` with ``olm_store`` use nio.
"""
