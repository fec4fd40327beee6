"""
Child processes, each confined and ended with everything that it has started.

`service` starts a program of the daemon in which third-party code runs (litellm, speech, pictures, vectors),
`service_child` is the child's side, `frames` what passes between them, `service_confinement` what a child
gives up before it loads anything; such programs are called ``*child`` and lie beside their callers.
`command_sandbox` chooses the confinement of commands that a model writes: `rights` and `seccomp` (pure) say
what a program gets; `order` starts a small interpreter (`confined_child`) that confines itself and becomes
the program or `bubblewrap`, perhaps in a unit of the service manager (`external_runner`). `proof` tries to
break out: no command runs in an unproved sandbox. `long_running` is for programs with a dialogue.
"""
