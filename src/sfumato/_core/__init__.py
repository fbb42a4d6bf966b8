"""What several packages share and none of them owns; private to this library, never exported."""
