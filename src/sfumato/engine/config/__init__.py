"""The configuration of a run: its sections, the table of components, rules between sections."""
