"""Clients of providers of speech, transcripts and pictures."""
