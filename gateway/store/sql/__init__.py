"""The stores of the queue, as SQL that both engines run; each engine has a package of its own."""
