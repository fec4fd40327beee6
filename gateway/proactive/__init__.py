"""What the bot does without being asked: alerts to the owner, the heartbeat monitor, scheduled jobs."""
