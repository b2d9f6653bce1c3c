"""The command `culver`: serve, and everything one does with a running broker from a shell."""
