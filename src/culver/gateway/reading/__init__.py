"""Reading partitions for many readers at once, without fetching the same records for each."""
