"""How `squidbot init` asks for a mailbox, finds its servers and logs in."""
