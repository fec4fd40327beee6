"""The durable queue. `stores.py` lists its stores; each file in ``sql/`` states what its store guarantees."""
