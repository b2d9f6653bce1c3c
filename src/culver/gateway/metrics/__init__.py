"""What can be watched: metrics for Prometheus, the cluster's events, throughput, and whether the gateway is well."""
