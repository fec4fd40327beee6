"""
The heartbeat: a channel whose messages come from the clock. Each tick asks the bot to check what needs
attention. ``tick_schedule.py`` knows which tick is due (pure), ``checklist.py`` whether there is anything to
do (pure), ``silence.py`` whether an answer is worth sending (pure), ``tick_schedule.py`` what the model is
asked (pure); ``channel.py`` waits for the ticks.
"""
