"""Verifies who sent a mail: Authentication-Results, DKIM, and the policy for senders."""
