"""All endpoints of the console's JSON API."""

from __future__ import annotations

from culver.gateway.console import (
    activity_pages,
    cluster_pages,
    export,
    group_pages,
    offset_reset,
    one_record,
    records,
    search_page,
    tail,
    topic_detail,
    topic_list,
    transaction_pages,
)
from culver.gateway.routing import Endpoint

ROUTES: list[Endpoint] = [
    *cluster_pages.ROUTES,
    *topic_list.ROUTES,
    *records.ROUTES,
    *one_record.ROUTES,
    *tail.ROUTES,
    *export.ROUTES,
    *topic_detail.ROUTES,
    *group_pages.ROUTES,
    *offset_reset.ROUTES,
    *transaction_pages.ROUTES,
    *activity_pages.ROUTES,
    *search_page.ROUTES,
]
