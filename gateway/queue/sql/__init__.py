"""The stores of the queue as SQL texts that every engine runs; the engines are in packages of their own."""
