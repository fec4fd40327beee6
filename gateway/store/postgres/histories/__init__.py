"""
Histories, consolidation records and memory documents as tables, in the database of the queue. ``history`` has
a row per line with the JSON of `agent_core.storage.history_lines` and a gapless position ``seq``;
``consolidation`` the record of each session, ``memory`` all versions, as JSON, so that exports equal those of
a home. An answer's lines are written in its turn's transaction, without a journal. Search uses the embedded
index's words: ``words`` as a set with a lexeme for home and scope, ``said`` in order. The tables are in
``history_tables`` above.
"""
