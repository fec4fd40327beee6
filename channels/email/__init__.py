"""
The email channel: one mailbox, read by IMAP, answered by SMTP.

==================  =========================================================================================
``config``          the settings
``channel``         `EmailChannel`: the contract of ``channels/base.py``, wired from the rest
``receiver``        what is new in the mailbox → the gateway's inbox; ``position`` is how far it was read,
                    ``chores`` does the housekeeping
``mailbox``         IMAP: the door to aioimaplib; ``imap_protocol`` hardens it, ``imap_syntax`` reads it;
                    ``folders`` and ``imap_names`` say which folder is meant
``submit``          SMTP: the door to aiosmtplib, one step at a time
``intake``          one fetched mail → what the gateway is told about it (pure)
``inbound``         bytes → text and files, under caps (pure); ``mime``, ``transfer``, ``flowed``,
                    ``calendar``, ``quoting``, `agent_core.html_to_text` help; ``telling`` tells the gateway
``attachments``     files of mails: into the store before a mail is accepted, out of it for an answer
``dsn``             a report that a mail did not arrive → which one, and why (pure)
``guard``           who wrote it, and may it be answered (pure); ``evidence``, ``addresses``, ``limits`` help
``sender_proof``    a signature by the sender's domain; ``dkim``, ``dkim_coverage`` verify, ``names`` asks
``safety``          what goes out: ``brake`` stops loops, refused logins are not repeated
``login``           a password or a token; ``tokens`` keeps them alive, ``token_login`` gets the first one
``examine``         for ``squidbot check``: a mail to ourselves
``threads``         which conversation a mail belongs to, and the ids of our own mails (pure)
``outbound``        an answer → bytes and envelope (pure), ``page`` its HTML; ``posting`` hands it in
``reaching``        threads with people who have not asked
``tls, imap_link``  certificates in plain words; how an IMAP connection is made, and its limits
==================  =========================================================================================

Flags and folders of the mailbox are housekeeping and never the truth: what was taken in and what was answered
is known to the gateway's store alone.
"""
