"""
The tools of models, one file or package per family, and the registry of those that every run has. A tool that
belongs to one session is made for each run and passed beside the registry. Nothing is imported here: settings
know the families, and do not load them.
"""
