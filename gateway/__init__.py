"""Wires, runs and watches the parts: settings, durable queue, turns, delivery, supervision, command line."""
