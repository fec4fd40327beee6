"""
Running a program so that it can do no harm, and ending it with everything that it has started.

`policy` and `seccomp` (pure) say what is allowed. `process` is the daemon's side: it starts a small
interpreter, which runs `child`, confines itself by Landlock, seccomp and limits, and becomes the program; or
it becomes bubblewrap (`bubblewrap`), with the same filter and limits. The interpreter may also be in a
unit of the service manager, or in a container (`linked`, `container`).
`probe` tries to break out of the very sandbox that commands get; nothing is run in one that was not proved.
"""
