"""Consolidation: moves old history into a conversation's summary. Policy, model calls, worker."""
