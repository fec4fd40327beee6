"""
The email channel: one mailbox, read by IMAP, answered by SMTP.

==================  ==========================================================================
``config``          the settings
``channel``         `EmailChannel`: the contract of ``channels/base.py``, wired from the rest
``receiver``        what is new in the mailbox, into the gateway's inbox
``intake``          what the gateway is told about one fetched mail; its words: ``intake_text``
``verification_queue``  sender authentication beside the receiving loop
``attachments``     files of mails: stored before a mail is accepted, fetched for an answer
``sent_tracker``    which of our mails have left, by the copies that come back
``crash_suspects``  mails at which the process died while reading
``self_test``       for ``squidbot check``: a mail to ourselves
``imap/``           the mailbox: the door to aioimaplib, positions, folders, housekeeping
``smtp/``           submission: the door to aiosmtplib, one step at a time
``auth/``           passwords, OAuth tokens, TLS
``parse/``          bytes into text, files, addresses, threads and bounces, under caps (pure)
``trust/``          who wrote it, and may it be answered; which bounces are believed
``limits/``         rates, the circuit breaker, the loop guard
``compose/``        an answer as bytes and envelope, its HTML, what our copies are known by (pure)
==================  ==========================================================================

Flags and folders of the mailbox are housekeeping and never the truth: only the gateway's queue knows which
mails were accepted and which were answered.
"""
