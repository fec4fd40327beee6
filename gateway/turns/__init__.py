"""
One turn, from the claim of queued messages to the commit of its answer. ``dispatcher`` says which session
runs, ``handler`` runs a claimed turn, ``kinds`` is what differs: ``chat``, ``commands/``, ``heartbeat`` and
``scheduled_job``. ``model_run`` asks the model, ``commit`` and ``failure`` end the turn.
"""
