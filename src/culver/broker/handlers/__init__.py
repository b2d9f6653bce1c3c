"""One module per request: what it does, the versions it serves, and what changed in them."""
