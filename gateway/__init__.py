"""The part that wires, runs and watches: settings, durable queue, delivery, supervision, command line."""
