"""
What the daemon serves by HTTP: health and metrics, webhooks (``hooks.py``), and the console, for which
``samples.py`` keeps the last day in memory.
"""
