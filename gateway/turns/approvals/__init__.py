"""A person's yes: to drafts that must be released, and to tool calls that need consent."""
