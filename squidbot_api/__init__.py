"""
The interface for plugins: channels and tools in packages of their own.

This package only gives names to what is defined elsewhere, so that the places may change. What stands in
``tests/contract/api.txt`` stays as it is, or gets a default, within one `API_VERSION`.
"""

from channels.plugin import API_VERSION

__all__ = ["API_VERSION"]
