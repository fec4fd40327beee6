"""
Scheduled jobs: done at a time that a person has chosen, such as "remind me tomorrow at 9". ``triggers.py``
computes times (pure), ``trigger_parsing.py`` reads people's words, ``scheduler.py`` fires, ``service.py``
serves tool and command line. It is no channel: a due job becomes an inbox row of its conversation's channel
and session, with a native id of its own, so that order, exactly-once, scope and delivery are those of any
message.
"""
