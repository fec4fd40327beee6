"""The process and its machine: home folder, lock, clock, service manager, terminal text."""
