"""A person's data: the inventory, the export, and the erasure (GDPR articles 15 and 17)."""
