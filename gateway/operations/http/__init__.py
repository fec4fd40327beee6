"""
The status page: one page that the daemon itself renders, for whoever sits at this machine.

``samples.py`` keeps the last day in memory, ``charts.py`` draws it, ``status_page.py`` puts the page together
and serves it. Read-only, without scripts, and nothing is loaded from anywhere.
"""
