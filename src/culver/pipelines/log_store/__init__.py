"""A searchable store of log events: Parquet files, full-text indexes and a manifest; see `log_store.store.LogStore`."""
