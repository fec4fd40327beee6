"""Limits on sending: rates, the circuit breaker, the loop guard."""
