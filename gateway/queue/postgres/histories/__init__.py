"""
Histories, consolidation records and memory documents as tables, in the database of the queue.

``history`` has one row for each line, which is the JSON of the line in a file (`agent_core.storage.lines`);
``seq`` is its position, counted from 0 without a gap under the lock of the session. ``consolidation`` has the
record of each session, ``memory`` every version of each document, both as the JSON of their files. So an
export writes what it writes of a home, and a NUL or half a surrogate pair is kept as JSON keeps it.

The lines of an answer are written in the transaction that completes its turn. They wait in no journal.

The search cuts texts into words with the functions of the embedded index. ``words`` holds those of a line as
a set, with one lexeme that stands for its home and its scope; ``said`` holds them in their order, for
phrases. Nothing that a person wrote is parsed by the server.

The tables are in ``history_tables`` of the package above. Files: ``lines`` (histories), ``records``,
``documents``, ``search``, ``files`` (the statements of each), ``memory`` (the `MemoryPort` and the search),
``personal`` (what an export and an erasure need), ``integrity``.
"""
