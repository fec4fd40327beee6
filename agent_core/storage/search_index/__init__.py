"""
Full-text search in the histories, by SQLite. ``index`` follows the files and answers, ``rows`` are the tables
(with ``index`` the only places that know of SQL here), ``files`` reads histories line by line, ``text`` says
what a query means.
"""

from agent_core.storage.search_index.search_index import SearchIndex

__all__ = ["SearchIndex"]
