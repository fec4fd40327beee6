"""
Runs programs confined, and ends them with everything that they have started.

`rights` and `seccomp` (pure) say what a program gets; `command_sandbox` chooses the confinement of shell
commands; `process` starts a small interpreter (`child`) that confines itself and becomes the program or
`bubblewrap`, perhaps in a unit of the service manager (`external_runner`). `probe` tries to break out: no
command runs in an unproved sandbox. `long_running` is for programs with a dialogue, such as MCP servers.
"""
