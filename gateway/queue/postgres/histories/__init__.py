"""
Histories, consolidation records and memory documents as tables, in the database of the queue.

``history`` has one row for each line, which is the JSON of the line in a file (`agent_core.storage.lines`);
``seq`` is its position, counted from 0 without a gap under the lock of the session. ``consolidation`` has the
record of each session, ``memory`` every version of each document, both as the JSON of their files. So an
export has the same content as that of a home, and a NUL or half a surrogate pair is stored as JSON escapes
it.

The lines of an answer are written in the transaction that completes its turn. They do not pass through a
journal.

The search splits texts into words with the functions of the embedded index. ``words`` holds those of a line
as a set, with one lexeme that stands for its home and its scope; ``said`` holds them in order, for phrases.
The server parses nothing that a person wrote.

The tables are in ``history_tables`` of the package above. Files: ``lines`` (histories), ``records``,
``documents``, ``search``, ``files`` (the statements of each), ``memory`` (the `MemoryPort` and the search),
``personal`` (for export and erasure), ``integrity``.
"""
