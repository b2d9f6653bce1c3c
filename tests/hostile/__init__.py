"""Hostile clients: whatever bytes they send, the broker lives, stays small, and serves the others."""
