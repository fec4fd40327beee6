"""Voice and pictures: providers, local engines, transcripts, and the tool that makes pictures."""
