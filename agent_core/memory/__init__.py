"""
The two levels of memory: a document for all sessions of a scope, and a summary of each session. ``manager``
puts both into prompts and keeps the history; ``scopes`` decides whose document a session has. Nothing is
imported here: whoever only names a scope needs no manager.
"""
