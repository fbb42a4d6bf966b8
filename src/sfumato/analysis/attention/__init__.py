"""Where a network looks: activation maps, and how well they fit the objects."""
