"""
Moves a queue with its histories and memory to the other engine.

``marker.py`` is the marker left in the source database, ``tables.py`` lists the tables of both engines,
``files.py`` reads and writes the files of a home.
`gateway.queue.postgres.moving` is the PostgreSQL side; `gateway.operations.moving` combines the parts.
"""
