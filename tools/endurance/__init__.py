"""Stress test of what Sfumato guarantees: `python -m tools.endurance --minutes 30`."""
