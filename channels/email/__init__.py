"""
The email channel: one mailbox, read by IMAP, answered by SMTP.

==================  =========================================================================================
``config``          the settings
``channel``         `EmailChannel`: the contract of ``channels/base.py``, wired from the rest
``receiver``        what is new in the mailbox → the gateway's inbox; ``chores`` does the housekeeping
``mailbox``         IMAP: the door to aioimaplib; ``imap_protocol`` hardens it, ``imap_syntax`` reads it
``submit``          SMTP: the door to aiosmtplib, one step at a time
``intake``          one fetched mail → what the gateway is told about it (pure)
``inbound``         bytes → text, under caps (pure); ``mime``, ``html_text`` and ``quoting`` help
``guard``           who wrote it, and may it be answered (pure); ``evidence``, ``addresses``, ``limits`` help
``threads``         which conversation a mail belongs to, and the ids of our own mails (pure)
``outbound``        an answer → bytes and envelope (pure)
``tls, imap_link``  certificates in plain words; how an IMAP connection is made, and its limits
==================  =========================================================================================

Flags and folders of the mailbox are housekeeping and never the truth: what was taken in and what was answered
is known to the gateway's store alone.
"""
