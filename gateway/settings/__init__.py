"""
The configuration. ``settings.py`` has the models and their fields, ``loading.py`` reads a file into them,
``source.py`` keeps the lines of the YAML and its references, ``cross_checks.py`` and ``problems.py`` say what
is wrong, ``example.py`` and ``json_schema.py`` generate pages.
"""

from gateway.settings.loading import load_settings, use_timezone
from gateway.settings.settings import Settings

__all__ = ["Settings", "load_settings", "use_timezone"]
