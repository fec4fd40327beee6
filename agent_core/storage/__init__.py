"""
Stores conversations and memory on disk; a twin in memory is for tests.

On-disk layout under the home folder (folders 0700, files 0600)::

    sessions/
      matrix=.=21room=3ahs=2etest.jsonl           history: one JSON object per line, only ever appended to
      matrix=.=21room=3ahs=2etest.meta.json       cursor and summary: one record, replaced atomically
      ….meta.json.bad-20260103T140500Z            a record that was wrong, kept aside
    memory/
      <session>/summary.md                        readable copy of the summary in the record
      owner/MEMORY.history.jsonl                  every version of the owner's document
      people/<address>/MEMORY.md                  another person's document, seen in their direct sessions
      people/<address>/MEMORY.history.jsonl
      rooms/<room>/MEMORY.md                      a shared room's document
      rooms/<room>/MEMORY.history.jsonl
    workspace/
      MEMORY.md                                   the owner's document
    search.db                                     index of all histories: a cache, made again if it is missing

A line of a history::

    {"id":"17.0","turn":"17","role":"user","content":"…","timestamp":"2026-01-03T14:05:00Z",
     "sender":"@alice:hs.test","n":41,"scope":"owner"}

``scope`` says who could read along when it was said, which is who can find it again in a search.
``n`` is the line's position, counted from 0. A cursor is a position too: everything before it is in the
summary. Because the last line knows its position, the length of a history is known without reading it. A
torn or unreadable line keeps its position, so it never shifts the cursor. Lines without ``n`` (written by
hand, imported) take the position that follows from their neighbours. The record knows the byte at which the
cursor's line begins, too, and that decides: so a line too much or a wrong ``n`` hides no message.

Files: ``layout`` (paths), ``history_lines`` (a message as a line), ``history_paging`` (what is handed out),
``history_file`` (one history), ``durable_files`` (appending, syncing, errors), ``session_files`` (a history
with its record of cursor and summary), ``memory_files`` (memory documents and their versions),
``jsonl_memory`` (the `MemoryPort` over it), ``search_index`` (the `SearchPort`).
"""

from agent_core.storage.jsonl_memory import JsonlMemory

__all__ = ["JsonlMemory"]
