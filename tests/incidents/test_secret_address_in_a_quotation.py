"""
The secret address that proves a person came back in an answer that quoted their mail, with a copy to somebody else, and
in what the model was shown of quoted and forwarded mails; only the text and the subject were searched for it.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from channels.email.config import EmailConfig
from channels.email.receive.mail_intake import MailIntake, OwnCopy, read_arrival
from channels.email.reply_limits import AnswerLimiter

SECRET = "kx7-q2m-9fp-w4z-t8r"
ADDRESS = f"bot+{SECRET}@mail.test"


@pytest.mark.parametrize("spelled", [ADDRESS, ADDRESS.upper()])
def test_it_stands_nowhere(spelled: str) -> None:
    """In the text, the subject, what is quoted back, what stands below, and in forwarded mails and their senders."""
    server = {"host": "127.0.0.1", "port": 1, "security": "tls"}
    config = EmailConfig.model_validate(
        {
            "address": "bot@mail.test",
            "username": "bot",
            "password": "pw",
            "imap": server,
            "smtp": server,
            "allow_from": ["alice@mail.test", "bob@mail.test"],
            "subaddress_secrets": [{"sender": "alice@mail.test", "secret": SECRET}],
            "quote_original": "full",
            "reply_all": True,
        }
    )
    raw = (
        f"From: alice@mail.test\r\nTo: {ADDRESS}\r\nCc: bob@mail.test\r\nSubject: Fwd: {spelled}\r\n"
        "Message-ID: <1@mail.test>\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
        f"--b\r\nContent-Type: text/plain\r\n\r\nI write to {spelled}\r\n\r\nOn Monday, {spelled} wrote:\r\n"
        f"> Yours, {spelled}\r\n"
        f"--b\r\nContent-Type: text/calendar\r\n\r\nBEGIN:VEVENT\r\nLOCATION:{spelled}\r\nEND:VEVENT\r\n"
        f"--b\r\nContent-Type: message/rfc822\r\n\r\nFrom: {spelled}\r\nSubject: {spelled}\r\n\r\nTo {spelled}\r\n"
        "--b--\r\n"
    ).encode()
    arrival = read_arrival(1, datetime.now(UTC), raw, whole=True)
    message = MailIntake("email", config, AnswerLimiter(config.limits)).convert(arrival, uidvalidity=1)
    assert not isinstance(message, OwnCopy)
    assert message.sender.verified
    assert message.context.cc == ("bob@mail.test",)
    assert "i write to bot+…@" in message.context.quoted.text.lower()
    assert len(message.background) == 3
    assert SECRET not in message.model_dump_json().lower()
