"""What can go wrong while starting or using a development server.

One small tree, so that `squidbot demo` and the test fixtures can tell "your machine lacks something"
(`ToolsMissing`), "the server did not come up" (`StartFailed`), "it answered with an error"
(`RequestFailed`) and "it never said what we waited for" (`WaitedInVain`) apart.
"""

from __future__ import annotations


class DevServerError(Exception):
    """A development server could not do its work."""


class ToolsMissing(DevServerError):
    """The software for a development server is not there and could not be installed."""


class StartFailed(DevServerError):
    """A development server did not come up; the text holds the end of its log."""


class RequestFailed(DevServerError):
    """A development server answered a request with an error."""

    def __init__(self, status: int, errcode: str, text: str) -> None:
        """Keep the parts that a test wants to look at."""
        super().__init__(f"{status} {errcode} {text}".strip())
        self.status = status
        self.errcode = errcode


class WaitedInVain(DevServerError, TimeoutError):
    """Something expected did not happen within its time limit."""
