"""Functions that several packages need and none owns; private to this library."""
