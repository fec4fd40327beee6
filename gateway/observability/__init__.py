"""What can be seen of a running gateway: logs, metrics, and what is kept out of both."""
