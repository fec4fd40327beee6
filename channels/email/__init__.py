"""
The email channel: one mailbox, read by IMAP, answered by SMTP.

==================  ==========================================================================
``config``          the settings
``channel``         `EmailChannel`: the contract of ``channels/base.py``, wired from the rest
``receive/``        what is new in the mailbox, into the gateway's inbox, with what is told about it
``sent_tracker``    which of our mails have left, by the copies that come back
``mail_self_test``  for ``squidbot check``: a mail to ourselves
``imap/``           the mailbox: the door to aioimaplib, positions, folders, housekeeping
``smtp/``           submission: the door to aiosmtplib, one step at a time
``mail_credentials``  passwords, OAuth tokens, TLS
``parse/``          bytes into text, files, addresses, threads and bounces, under caps (pure)
``trust/``          who wrote it, and may it be answered; which bounces are believed
``reply_limits``    rates and the circuit breaker, which ``loop_guard`` holds to the clock
``compose/``        an answer as bytes and envelope, its HTML, what our copies are known by (pure)
==================  ==========================================================================

Flags and folders of the mailbox are housekeeping and never the truth: only the gateway's queue knows which
mails were accepted and which were answered.
"""
