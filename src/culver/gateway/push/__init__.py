"""Records pushed to receivers over server-sent events and WebSocket, with credits and acknowledgements."""
