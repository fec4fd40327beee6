"""Decides who is believed: Authentication-Results, DKIM, the policy for senders, and bounces."""
