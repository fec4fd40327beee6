"""Speech: transcribes sound files (`transcription`) and speaks answers."""
