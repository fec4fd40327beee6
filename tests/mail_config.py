"""The configuration of a mail account that nobody logs in to."""

from __future__ import annotations

from typing import Any

from channels.email.config import EmailConfig


def email_config(**changes: Any) -> EmailConfig:
    """``bot@mail.test``, whose server says in ``mail.test`` who a sender is."""
    return EmailConfig.model_validate(
        {
            "address": "bot@mail.test",
            "username": "bot",
            "password": "pw",
            "imap": {"host": "127.0.0.1"},
            "smtp": {"host": "127.0.0.1"},
            "trusted_authserv_ids": ["mail.test"],
            **changes,
        }
    )
