"""
`squidbot check`. ``all_checks.py`` runs the checks, of which each ``…_checks.py`` has those of one subject;
``check_report.py`` has the findings as text and JSON; ``trial_start.py`` starts a newer version for `update`.
"""
