"""The process's logging, turned to a stream for one test and put back afterwards."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings

import structlog

from gateway.observability.logs import configure_logs

CANARY = "c4n4ry-s3cr3t"


@contextlib.contextmanager
def put_back_afterwards():
    """Leaves the process's logging as it was."""
    root, levels = logging.getLogger(), {}
    handlers, level, showwarning = root.handlers[:], root.level, warnings.showwarning
    for name in list(logging.root.manager.loggerDict):
        levels[name] = logging.getLogger(name).level
    try:
        yield
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
        logging.captureWarnings(False)
        warnings.showwarning = showwarning
        root.handlers[:], root.level = handlers, level
        for name, number in levels.items():
            logging.getLogger(name).setLevel(number)
        from loguru import logger

        logger.remove()


def logging_to(stream=None, **options):
    stream = stream if stream is not None else io.StringIO()
    configure_logs(options.pop("level", "info"), stream=stream, **options)
    return stream


def lines_of(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]
