"""The console in a real Chromium, in front of a real broker: what people see, click, type and share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import console_cluster as cluster
import pytest
from anchors import Unavailable
from console_browser import Console, running_chromium
from console_http import answer
from playwright.sync_api import Browser, Page, Route, expect

from culver.testing import Broker

pytestmark = pytest.mark.interop

Visit = Callable[..., Console]


@pytest.fixture(scope="module")
def console_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with its gateway, and something to see on every page."""
    log_store = tmp_path_factory.mktemp("store") / "logs"
    cluster.fill_log_store(log_store)
    settings = {"culver.http.log.store": str(log_store), "culver.http.webhook.allow.private": "127.0.0.1/32"}
    with Broker(http=True, topics=cluster.TOPICS, config=settings) as broker:
        cluster.fill_topics(broker)
        cluster.commit(broker, "billing", 10)
        yield broker


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        with running_chromium() as browser:
            yield browser
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def visit(browser: Browser, console_broker: Broker, tmp_path: Path) -> Iterator[Visit]:
    """Makes visitors: visit(color_scheme="dark"). Afterwards none has seen an error or asked another origin."""
    artifacts = Path(os.environ.get("CULVER_ARTIFACTS") or tmp_path)
    visitors: list[Console] = []

    def make(**options: object) -> Console:
        visitors.append(Console(browser, console_broker.http_url, artifacts, **options))
        return visitors[-1]

    yield make
    for visitor in visitors:
        visitor.close()
    faults = [fault for visitor in visitors for fault in visitor.faults]
    assert not faults, f"{faults}, and the gateway's log ends with:\n{console_broker.log_text[-3000:]}"
    assert [request for visitor in visitors for request in visitor.foreign_requests] == []


@pytest.fixture
def console(visit: Visit) -> Console:
    return visit()


def cells(page: Page, table: str, column: int) -> list[str]:
    """The texts of one column of a table, by the table's label."""
    return page.get_by_role("table", name=table).locator(f"tbody td:nth-child({column})").all_inner_texts()


# --- pages ---


def test_the_overview_shows_key_figures_throughput_and_events(console: Console) -> None:
    page = console.open("/")
    expect(page.locator(".figure", has_text="Brokers").locator(".amount")).to_have_text("1")
    expect(page.get_by_role("img", name="Messages per second")).to_be_visible()
    expect(page.locator(".events")).to_contain_text("broker")
    console.picture(page, "overview")


def test_brokers_show_what_they_lead_and_store(console: Console) -> None:
    page = console.open("/console/brokers")
    expect(page.get_by_role("table", name="Brokers")).to_contain_text("controller")
    expect(page.get_by_role("table", name="Log directories")).to_contain_text("usable")


def test_a_broker_that_is_down_is_shown_as_such(console: Console) -> None:
    """In front of one broker: its answers are changed on their way, as they are when another has died."""

    def with_another_that_is_down(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        if "items" in found:
            found["items"].append(
                {**found["items"][0], "id": 99, "is_up": False, "bytes": None, "log_dirs": []}
            )
        else:
            found["counts"]["brokers_down"] = 1
        route.fulfill(response=answer, json=found)

    for address in ("**/api/cluster", "**/api/brokers"):
        console.context.route(address, with_another_that_is_down)
    page = console.open("/")
    expect(page.locator(".figure.bad", has_text="Brokers").locator(".note")).to_contain_text("1 down")
    expect(page.locator("#cluster-name")).to_contain_text("1 of 2 brokers")
    page = console.open("/console/brokers")
    expect(page.locator(".heading .summary")).to_contain_text("2 brokers, 1 down")
    expect(page.get_by_role("table", name="Brokers").locator("tbody tr", has_text="99")).to_contain_text(
        "down"
    )


def test_topics_are_found_sorted_and_opened(console: Console) -> None:
    page = console.open("/console/topics?sort=-messages")
    expect(page.get_by_role("table", name="topics").locator("tbody tr").first).to_contain_text("orders")
    page.get_by_role("searchbox", name="Find topics").fill("see")
    expect(page.get_by_role("table", name="topics").locator("tbody tr")).to_have_count(1)
    assert "q=see" in page.url
    page.get_by_role("link", name="seek", exact=True).click()
    expect(page.get_by_role("heading", name="seek")).to_be_visible()
    expect(page.get_by_role("table", name="Partitions")).to_contain_text("in sync")


def test_a_topic_shows_its_partitions_and_grows(console: Console) -> None:
    page = console.open("/console/topics/orders")
    expect(page.get_by_role("table", name="Partitions").locator("tbody tr")).to_have_count(3)
    assert cells(page, "Partitions", 5) == ["30", "30", "30"]
    page = console.open("/console/topics/empty")
    page.get_by_role("button", name="Add partitions").click()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("table", name="Partitions").locator("tbody tr")).to_have_count(2)


def test_a_setting_is_edited_and_reset(console: Console) -> None:
    page = console.open("/console/topics/orders?tab=configuration")
    page.get_by_role("button", name="Edit retention.ms").click()
    page.get_by_label("Value").fill("3600000")
    page.get_by_role("button", name="Save").click()
    row = page.get_by_role("table", name="Configuration").locator("tr", has_text="retention.ms").first
    expect(row).to_contain_text("1 h")
    console.picture(page, "configuration")
    page.get_by_role("button", name="Edit retention.ms", exact=True).click()
    page.get_by_role("button", name="Back to the default").click()
    expect(page.get_by_role("table", name="Configuration")).to_contain_text("7 days")


def test_a_topic_is_made_and_deleted_only_by_typing_its_name(console: Console) -> None:
    page = console.open("/console/topics")
    page.get_by_role("button", name="New topic").click()
    page.get_by_label("Name", exact=True).fill("short-lived")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="short-lived")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    confirm = page.get_by_role("button", name="Delete the topic")
    expect(confirm).to_be_disabled()
    page.get_by_label("Type short-lived to confirm").fill("short-lived")
    confirm.click()
    expect(page).to_have_url(f"{console.url}/console/topics")


def test_transactions_show_who_keeps_readers_waiting(console: Console, console_broker: Broker) -> None:
    producer = cluster.begin_transaction(console_broker)
    try:
        page = console.open("/console/transactions")
        expect(page.get_by_role("table", name="transactions")).to_contain_text("console-open")
        expect(page.get_by_role("table", name="transactions")).to_contain_text("ledger 0")
        console.picture(page, "transactions")
    finally:
        producer.abort_transaction(10)


def test_pipelines_show_rows_and_lag(console: Console) -> None:
    page = console.open("/console/pipelines")
    expect(page.get_by_role("heading", name="culver-logs")).to_be_visible()
    expect(page.locator(".figure", has_text="Rows").locator(".amount")).to_have_text("4,711")
    expect(page.get_by_role("img", name="Rows per second")).to_be_visible()


def test_a_webhook_is_made_paused_resumed_and_deleted(console: Console) -> None:
    page = console.open("/console/webhooks")
    page.get_by_role("button", name="New webhook").click()
    page.get_by_label("Name", exact=True).fill("billing-hook")
    page.get_by_label("Topics", exact=True).fill("empty")
    page.get_by_label("Address to call").fill("http://127.0.0.1:9/hook")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("dialog", name="Webhook billing-hook has been made")).to_contain_text("whsec_")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Pause billing-hook").click()
    expect(page.get_by_role("table", name="Webhooks")).to_contain_text("paused")
    page.get_by_role("button", name="Resume billing-hook").click()
    expect(page.get_by_role("button", name="Pause billing-hook")).to_be_visible()
    page.get_by_role("button", name="billing-hook", exact=True).click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_label("Type billing-hook to confirm").fill("billing-hook")
    page.get_by_role("button", name="Delete the webhook").click()
    expect(page.get_by_role("heading", name="No webhooks")).to_be_visible()


def test_log_search_marks_words_and_draws_when_they_occurred(console: Console) -> None:
    page = console.open("/console/search?q=timeout")
    expect(page.locator("mark")).to_have_text("timeout")
    expect(page.get_by_role("img", name="Lines over time")).to_be_visible()
    expect(page.locator(".log-line")).to_have_count(1)
    console.picture(page, "search")
    page.get_by_role("searchbox", name="Words").fill("went AND well")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".log-line")).to_have_count(19)
    assert page.evaluate("window.pwned") is None


def test_files_are_cached_for_ever_and_the_page_is_asked_for_again(console_broker: Broker) -> None:
    page = answer(console_broker.http_url + "/console/topics")
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert page.headers["x-content-type-options"] == "nosniff"
    unchanged = answer(console_broker.http_url + "/", {"if-none-match": page.headers["etag"]})
    assert (unchanged.status, unchanged.body) == (304, "")
    assert "<style" not in page.body
    assert " style=" not in page.body
    files = re.findall(r'(?:src|href)="(/console/files/[^"]+)"', page.body)
    assert any(file.endswith("/app.js") for file in files)
    for file in files:
        assert "immutable" in answer(console_broker.http_url + file).headers["cache-control"]
    old = re.sub(r"/files/[0-9a-f]+/", "/files/0123456789abcdef/", files[0])
    assert answer(console_broker.http_url + old).status == 404


# --- the message browser ---


def test_a_produced_message_appears_in_the_live_tail_and_pausing_keeps_it_back(console: Console) -> None:
    page = console.open("/console/topics/empty/messages?live=1")
    expect(page.get_by_text("Following")).to_be_visible()
    produce(page, "first of all")
    expect(page.locator(".record .preview")).to_have_text(["first of all"])
    page.get_by_role("button", name="Pause").click()
    produce(page, "while paused")
    expect(page.get_by_text("Paused, 1 message waiting")).to_be_visible()
    assert page.locator(".record").count() == 1
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".record .preview")).to_have_text(["while paused", "first of all"])
    console.picture(page, "live-tail")


def produce(page: Page, value: str) -> None:
    page.get_by_role("button", name="Produce").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key", exact=True).fill("some-key")
    dialog.get_by_label("Value", exact=True).fill(value)
    dialog.get_by_role("button", name="Produce").click()
    expect(dialog).to_have_count(0)


def test_messages_are_sought_by_offset(console: Console) -> None:
    page = console.open("/console/topics/seek/messages")
    expect(page.locator(".record .preview").first).to_have_text("message 29")
    page.get_by_label("Where to start").select_option("offset")
    page.get_by_label("Offset", exact=True).fill("17")
    page.keyboard.press("Enter")
    expect(page.locator(".record .preview").first).to_have_text("message 17")
    assert "from=offset%3A17" in page.url


def test_a_click_on_a_partition_goes_there(console: Console) -> None:
    page = console.open("/console/topics/seek/messages")
    track = page.locator(".position-map .seek")
    box = track.bounding_box()
    assert box is not None
    track.click(position={"x": box["width"] * 0.51, "y": 5})
    expect(page.locator(".record .preview").first).to_have_text("message 15")


def test_messages_are_sought_by_time(visit: Visit) -> None:
    page = visit(timezone_id="UTC").open("/console/topics/seek/messages")
    page.get_by_label("Where to start").select_option("time")
    # 1,790,000,000 s since 1970, and five minutes.
    page.get_by_label("Time", exact=True).fill("2026-09-21T14:18:20")
    page.keyboard.press("Enter")
    expect(page.locator(".record .preview").first).to_have_text("message 5")


def test_a_filter_looks_into_json_and_its_messages_unfold(console: Console) -> None:
    page = console.open("/console/topics/orders/messages")
    page.get_by_role("searchbox", name="Filter").fill(".customer.id=3 .order>80")
    page.keyboard.press("Enter")
    expect(page.locator(".record")).to_have_count(1)
    page.locator(".record-line").click()
    expect(page.locator(".record-body")).to_contain_text("checkout")
    expect(page.locator(".json")).to_contain_text('"tags": [')
    page.locator(".json-fold").first.click()
    expect(page.locator(".json")).not_to_contain_text('"tags"', use_inner_text=True)


def test_messages_are_exported_as_a_file(console: Console) -> None:
    page = console.open("/console/topics/seek/messages?from=offset:25")
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert download.value.suggested_filename == "seek.ndjson"
    assert len(lines) == 5
    assert "message 25" in lines[0]


def test_hostile_messages_are_shown_and_not_run(console: Console) -> None:
    page = console.open("/console/topics/hostile/messages?open=0:0")
    expect(page.locator(".record-body")).to_contain_text("<script>")
    expect(page.locator(".record-body")).to_contain_text("<b>name</b>")
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img, main script, main b:text('name')").count() == 0


# --- groups ---


def test_a_group_shows_its_lag_per_partition(console: Console) -> None:
    page = console.open("/console/groups")
    page.get_by_role("link", name="billing").click()
    expect(page.locator(".figure", has_text="Lag").locator(".amount")).to_have_text("60")
    assert cells(page, "Lag by partition", 3) == ["20", "20", "20"]
    console.picture(page, "group")


def test_a_group_with_a_slash_in_its_name_has_an_address(console: Console, console_broker: Broker) -> None:
    name = "team/a b%2F?"
    cluster.commit(console_broker, name, 12)
    page = console.open("/console/groups?q=team")
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    expect(page.get_by_role("button", name="Reset offsets")).to_be_visible()


def test_an_offset_reset_is_previewed_then_applied(console: Console, console_broker: Broker) -> None:
    cluster.commit(console_broker, "to-reset", 12)
    page = console.open("/console/groups/to-reset")
    page.get_by_role("button", name="Reset offsets").click()
    page.get_by_label("Move to").select_option("shift")
    page.get_by_label("By", exact=True).fill("-5")
    expect(page.get_by_text("15 messages will be read again")).to_be_visible()
    assert cells(page, "Before and after", 3) == ["12", "12", "12"]
    assert cells(page, "Before and after", 4) == ["7", "7", "7"]
    assert cluster.committed(console_broker, "to-reset") == [12, 12, 12]
    console.picture(page, "offset-reset")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert cluster.committed(console_broker, "to-reset") == [7, 7, 7]
    expect(page.locator(".figure", has_text="Lag").locator(".amount")).to_have_text("69")


# --- everywhere ---


def test_the_keyboard_goes_everywhere(console: Console) -> None:
    page = console.open("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    expect(page.get_by_role("table", name="topics")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("empty")
    page.keyboard.press("g")
    page.keyboard.press("g")
    expect(page.get_by_role("heading", name="Groups")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Find groups")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_an_address_can_be_shared(console: Console) -> None:
    page = console.open("/console/topics/orders/messages")
    page.get_by_label("Partition", exact=True).select_option("1")
    page.get_by_label("Where to start").select_option("offset")
    page.get_by_label("Offset", exact=True).fill("9")
    page.keyboard.press("Enter")
    first = page.locator(".record").first
    expect(first).to_have_attribute("data-place", "1:9")
    first.locator(".record-line").click()
    body = page.locator(".record-body").inner_text()
    shared = console.open(page.url.removeprefix(console.url))
    expect(shared.locator(".record").first).to_have_attribute("data-place", "1:9")
    assert shared.locator(".record-body").inner_text() == body
    expect(shared.get_by_label("Partition", exact=True)).to_have_value("1")
    expect(shared.get_by_label("Partition", exact=True).locator("option")).to_have_text(
        ["All", "0", "1", "2"]
    )
    page.go_back()
    expect(page.locator(".record").first).not_to_have_attribute("data-place", "1:9")


def test_dark_and_light_follow_the_system_until_they_are_chosen(visit: Visit) -> None:
    console = visit(color_scheme="dark")
    page = console.open("/console/topics")
    expect(page.locator("body")).to_have_css("background-color", "rgb(20, 24, 26)")
    console.picture(page, "topics-dark")
    page.get_by_role("button", name="Switch to light").click()
    expect(page.locator("body")).to_have_css("background-color", "rgb(245, 244, 239)")
    again = console.open("/console/topics")
    expect(again.locator("body")).to_have_css("background-color", "rgb(245, 244, 239)")


def test_a_telephone_shows_it_all_without_scrolling_sideways(visit: Visit) -> None:
    console = visit(viewport={"width": 390, "height": 844})
    page = console.open("/")
    for section in (
        "",
        "topics",
        "topics/orders",
        "topics/orders/messages",
        "groups/billing",
        "webhooks",
        "search",
    ):
        page.goto(f"{console.url}/console/{section}")
        expect(page.locator("main .figure, main [data-row], main .state").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), section
        console.picture(page, "narrow-" + (section.replace("/", "-") or "overview"))


def test_a_lost_gateway_is_noticed_and_found_again(console: Console) -> None:
    page = console.open("/console/groups/billing")
    lag = page.locator(".figure", has_text="Lag").locator(".amount")
    expect(lag).to_have_text("60")
    console.context.set_offline(True)
    expect(page.get_by_text("disconnected since")).to_be_visible()
    expect(page.get_by_text("Shown as of")).to_be_visible()
    expect(lag).to_have_text("60")
    console.context.set_offline(False)
    expect(page.get_by_text("Shown as of")).to_have_count(0)
    # The browser itself notes each request that fails.
    assert [fault for fault in console.faults if "ERR_INTERNET_DISCONNECTED" not in fault] == []
    console.faults.clear()


def test_what_is_not_there_says_so_and_what_to_do(visit: Visit) -> None:
    console = visit()
    page = console.open("/console/topics/no-such-topic")
    expect(page.get_by_role("alert")).to_contain_text("Not found")
    expect(console.open("/console/nowhere").get_by_role("heading", name="No such page")).to_be_visible()
    # The browser itself notes an answer of 404.
    assert [fault for fault in console.faults if "404" not in fault] == []
    console.faults.clear()
