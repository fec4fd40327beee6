"""
Models: the two clients that reach them, the pools that choose among them, and one that needs no network.

``wire`` and ``classify`` are pure and shared by both clients, ``streaming`` holds every answer to its
limits, ``pools`` falls back from one model to the next, ``build`` makes all of it from a description.
"""
