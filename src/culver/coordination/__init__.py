"""Where the cluster's state lives: the metadata-store port and its adapters."""
