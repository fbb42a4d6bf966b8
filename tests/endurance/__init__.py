"""The promises as a campaign: `python -m tests.endurance --minutes 30`."""
