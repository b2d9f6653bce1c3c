"""Parse log lines of many formats into one shape of event; see `parsing.lines.parse_lines`."""
