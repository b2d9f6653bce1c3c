"""All endpoints that shippers send to."""

from __future__ import annotations

from culver.gateway.ingest import elasticsearch, elasticsearch_probes, lines, loki, otlp

ROUTES = [
    *lines.ROUTES,
    *otlp.ROUTES,
    *loki.ROUTES,
    *elasticsearch_probes.ROUTES,
    *elasticsearch.ROUTES,
]
