"""
Running a program so that it can do no harm, and ending it with everything that it has started.

`rights` and `seccomp` (pure) say what a program gets. `command_sandbox` chooses what confines a command of
the shell, and runs it. `process` is the daemon's side of one run: it starts a small interpreter, the runner
(`child`), which confines itself by Landlock, seccomp and limits, and becomes the program; or it becomes
bubblewrap (`bubblewrap`), with the same filter and limits. The runner may also be in a unit of the service
manager (`external_runner`). `probe` tries to break out of the very sandbox
that commands get; nothing is run in one that was not proved. `long_running` starts programs that are talked
to, such as MCP servers.
"""
