"""The console: what it shows, as JSON under /api, and its pages."""
