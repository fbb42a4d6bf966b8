"""The configuration of a run: its sections, the table of parts, what fails before it starts."""
