"""What the folders share: several need it, none owns it; private to this library, not exported."""
