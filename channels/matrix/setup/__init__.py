"""How `squidbot init` asks for an account on Matrix, and logs in."""
