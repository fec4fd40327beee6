"""Approvals by a person: of drafts, of quarantined messages, and of tool calls."""
