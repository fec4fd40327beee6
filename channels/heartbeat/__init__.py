"""
The clock as a place where a conversation happens: a tick is a message, asking the bot to look around.

``schedule.py`` knows which tick is due (pure), ``checklist.py`` whether there is anything to do (pure),
``silence.py`` whether an answer is worth sending (pure), ``tick.py`` what is asked (pure); ``channel.py``
lets the time pass.
"""
