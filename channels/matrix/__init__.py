"""
Matrix: `MatrixChannel` and its `MatrixConfig`, for plain and encrypted rooms. ``channel`` owns the lifetime,
``channel_setup`` starts a run, ``admin`` is the operator's view. ``client`` contains the requests to the
homeserver, ``receive`` receives, ``send`` delivers, ``rooms`` tracks the state of rooms, ``events``
interprets events (pure), and ``crypto`` has the keys. Only ``client.nio_homeserver`` and
``encryption.olm_machine`` with ``olm_store`` use nio.
"""
