"""
Child processes of the daemon, in which third-party code runs: litellm, faster-whisper, Piper, the Opus
encoder.

`process` is the daemon's side, `server` the child's, `frames` what passes between them, and `confinement`
what a child gives up before it loads anything. The programs themselves are called ``*child`` and lie beside
their callers. Imports nothing of agent_core but its errors. Commands that a model writes are confined by
`agent_core.sandbox`.
"""
