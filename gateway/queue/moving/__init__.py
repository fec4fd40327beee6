"""
Moving a queue with its histories and memory to the other engine.

``marker.py`` is the note in the database that was left, ``tables.py`` compares tables of both engines,
``lines.py`` has bytes as text, ``files.py`` reads what the home has. `gateway.queue.postgres.moving` is the
other side, `gateway.operations.moving` puts them together.
"""
