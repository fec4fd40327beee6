"""What may be spent in a day, on whom, and what was."""
