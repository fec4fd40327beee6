"""The daily budget: what may be spent, by whom, and what has been spent."""
