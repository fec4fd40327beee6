"""
Models: the two clients that reach them, the pools that choose among them, and one that needs no network.
``openai_format`` and ``errors`` are pure and shared by both clients, ``streaming`` holds every answer to its
limits, ``pools`` falls back from one model to the next, ``factory`` makes all of it from a description
(``config``). ``litellm`` is the client for the providers that need that library, in a process of its own.
"""
