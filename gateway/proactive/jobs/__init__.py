"""
Scheduled jobs: done at a time that a person has chosen, such as "remind me tomorrow at 9".

``triggers.py`` knows when (pure), ``trigger_parsing.py`` reads how people and models say it, ``scheduler.py``
puts what is due into the inbox, ``service.py`` is what the tool and the command line do with jobs.

Why this is no channel: nobody talks here, and a due job belongs to a conversation of another channel; whether
its person may still speak, which conversation that is and where the jobs are kept is known to the gateway
alone. What is due becomes an inbox row of *that* channel and session, with a native id of its own, so order,
exactly-once, scope and delivery are those of any message.
"""
