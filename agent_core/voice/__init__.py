"""Speech: what is said in a sound file becomes text (`transcription`), and an answer can be spoken."""
