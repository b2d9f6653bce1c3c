"""The page about compatibility says what the tables say; needs neither Kafka nor a broker."""

from __future__ import annotations

from differential.compare import Difference, differences, unexpected, vanished
from differential.document import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m differential.document"


def test_a_difference_that_is_not_listed_is_found_and_one_that_is_gone_too() -> None:
    kafka = {"step": {"topics": [{"name": "a", "error_code": "NONE", "order": ["x", "y"]}]}}
    culver = {"step": {"topics": [{"name": "a", "error_code": "UNKNOWN", "order": ["x"]}]}}
    found = list(differences("script", kafka, culver))
    assert [(one.field, one.kafka, one.culver) for one in found] == [
        ("topics[a].error_code", "NONE", "UNKNOWN"),
        ("topics[a].order[1]", "y", "absent"),
    ]
    listed = Difference("script", "*", "topics[*].error_code", "NONE", "UNKNOWN", "for the test")
    gone = Difference("script", "step", "topics[b].error_code", "*", "*", "for the test")
    assert unexpected(found, [listed, gone]) == found[1:]
    assert vanished(found, [listed, gone]) == [gone]
