"""What people do in the console, in Chromium, on a real cluster of three nodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from playwright.sync_api import Browser, Route, expect

from tests.clusters import Cluster
from tests.console.browser.conftest import OpenPage
from tests.console.browser.console_page import ConsolePage
from tests.console.rest.caller import run_command
from tests.console.test_console_command import console as serve_console
from tests.processes import until
from tests.secure_node import SecureNode

pytestmark = pytest.mark.peer
SECONDS_MAX = 30


def topics(cluster: Cluster) -> dict[str, int]:
    """Partitions by name, as a Kafka client sees them."""
    found = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=SECONDS_MAX)
    return {name: len(topic.partitions) for name, topic in found.topics.items()}


def test_a_topic_is_created_extended_and_deleted(open_page: OpenPage, cluster: Cluster) -> None:
    console = open_page("topics")
    console.button("Create topic").click()
    dialog = console.dialog()
    dialog.get_by_label("Name", exact=True).fill("invoices")
    dialog.get_by_label("Partitions").fill("4")
    assert "riverrun topics create invoices --partitions 4" in console.command()
    console.submit("Create")
    console.expect_heading("invoices")
    until(lambda: topics(cluster).get("invoices") == 4, seconds=SECONDS_MAX, what="four partitions")
    console.button("Actions of this topic").click()
    console.page.get_by_role("menuitem", name="Delete topic…").click()
    delete = console.dialog().get_by_role("button", name="Delete", exact=True)
    expect(delete).to_be_disabled()
    console.dialog().get_by_role("textbox").last.fill("invoices")
    console.submit("Delete")
    console.expect_heading("Topics")
    until(lambda: "invoices" not in topics(cluster), seconds=SECONDS_MAX, what="it is deleted")


def test_the_command_of_a_dialog_does_the_same(open_page: OpenPage, cluster: Cluster) -> None:
    console = open_page("topics")
    console.button("Create topic").click()
    console.dialog().get_by_label("Name", exact=True).fill("by-command")
    run_command(console.command(), RIVERRUN_BOOTSTRAP=cluster.bootstrap)
    assert "by-command" in topics(cluster)


def test_a_setting_is_changed_after_a_dry_run(open_page: OpenPage, cluster: Cluster) -> None:
    console = open_page("topics/payments?tab=settings")
    console.page.get_by_role("searchbox").first.fill("retention.ms")
    console.button("Edit retention.ms").click()
    console.dialog().get_by_label("New value of retention.ms").fill("3600000")
    assert "retention.ms=3600000" in console.command()
    console.submit("Change")
    row = console.page.get_by_role("row").filter(has_text="retention.ms").first
    expect(row).to_contain_text("3600000", timeout=SECONDS_MAX * 1000)


def test_a_message_is_written_found_and_sent_again(open_page: OpenPage, cluster: Cluster) -> None:
    console = open_page("topics/payments/messages")
    console.button("Produce").click()
    dialog = console.dialog()
    dialog.get_by_label("Key format").select_option("text")
    dialog.get_by_label("Key", exact=True).fill("customer-9")
    dialog.get_by_label("Value", exact=True).fill('{"paid": 42}')
    console.submit("Produce")
    console.expect_toast("Written to partition")
    console.page.get_by_role("searchbox").fill('"paid": 42')
    expect(console.page).to_have_url(re.compile("filter="))
    rows = console.page.get_by_role("row").filter(has_text="customer-9")
    expect(rows).to_have_count(1, timeout=SECONDS_MAX * 1000)
    rows.get_by_role("button").first.click()
    console.button("Actions of this message").click()
    console.page.get_by_role("menuitem", name=re.compile("Send to a topic")).click()
    console.submit("Send")
    console.expect_toast("Sent to payments")
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "check",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition("payments", at, 0) for at in range(3)])
    seen = [m for m in consumer.consume(10, 5) if m.key() == b"customer-9"]
    consumer.close()
    assert [json.loads(message.value() or b"null") for message in seen] == [{"paid": 42}] * 2


def test_messages_are_filtered_by_javascript_in_the_browser(open_page: OpenPage) -> None:
    console = open_page("topics/orders/messages?limit=200")
    console.settle()
    console.button("JavaScript", is_exact=False).click()
    script = console.page.get_by_label("JavaScript filter")
    script.fill('value.city === "Lima" && value.amount > 90')
    console.button("Apply").click()
    table = console.page.get_by_role("region", name="Messages")
    expect(table.get_by_role("row").filter(has_text="Oslo")).to_have_count(0)
    expect(table.get_by_role("row").filter(has_text="Lima").first).to_be_visible()
    for code, failure in (
        ("while (true) {}", "not valid JavaScript"),
        ("(() => { while (true) {} })()", "took longer than 2 seconds"),
    ):
        script.fill(code)
        console.button("Apply").click()
        alert = console.page.get_by_role("alert").filter(has_text=failure)
        expect(alert).to_be_visible(timeout=SECONDS_MAX * 1000)
    assert console.failures == []


def test_messages_too_large_for_the_filter_are_counted(
    open_page: OpenPage, cluster: Cluster
) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    padding = "x" * 10_000
    for number in range(450):
        producer.produce("large", f'{{"padding": "{padding}", "number": {number}}}', partition=0)
    producer.produce("large", f'{{"padding": "{padding * 7}", "number": 450}}', partition=0)
    assert producer.flush(SECONDS_MAX) == 0
    console = open_page(f"topics/large/messages?js={quote('value.number % 150 === 0')}")
    console.expect_text("1 message was too large to filter completely")
    console.expect_text("3 messages of 451 read")


def test_markup_in_names_and_messages_is_shown_as_text(
    open_page: OpenPage, cluster: Cluster
) -> None:
    """Names of groups, keys, values and headers are what their authors chose."""
    markup = '<img src=x onerror="window.ran = 1"><script>window.ran = 1</script>'
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": markup})
    consumer.commit(offsets=[TopicPartition("payments", 0, 0)], asynchronous=False)
    consumer.close()
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce("payments", markup.encode(), markup.encode(), headers=[(markup, markup)])
    assert producer.flush(SECONDS_MAX) == 0
    shown = re.compile("onerror=")
    for path in ("groups", f"groups/{quote(markup, safe='')}", "topics/payments?tab=groups"):
        console = open_page(path)
        expect(console.page.get_by_text(shown).first).to_be_visible(timeout=SECONDS_MAX * 1000)
        assert console.page.locator("main img, main script").count() == 0, path
        assert console.page.evaluate("window.ran") is None, path
    console = open_page("topics/payments/messages?columns=key,value,headers&filter=onerror")
    row = console.page.get_by_role("row").filter(has_text="onerror=").first
    expect(row).to_be_visible(timeout=SECONDS_MAX * 1000)
    row.get_by_role("button").first.click()
    expect(console.page.get_by_role("heading", name="Headers")).to_be_visible()
    assert console.page.locator("main img, main script").count() == 0
    assert console.page.evaluate("window.ran") is None
    assert console.failures == []


def test_pages_of_messages_go_both_ways(open_page: OpenPage) -> None:
    console = open_page("topics/orders/messages?partition=0&limit=20")

    def offsets() -> list[int]:
        console.settle()
        cells = console.page.locator("main tbody tr td:nth-child(4)").all_inner_texts()
        return [int(cell.replace(",", "")) for cell in cells]

    until(lambda: offsets() == list(range(39, 19, -1)), seconds=SECONDS_MAX, what="newest")
    console.button("Older").click()
    until(lambda: offsets() == list(range(19, -1, -1)), seconds=SECONDS_MAX, what="older")
    console.button("Newer").click()
    until(lambda: offsets() == list(range(39, 19, -1)), seconds=SECONDS_MAX, what="newer")


def test_new_messages_appear_live(open_page: OpenPage, cluster: Cluster) -> None:
    console = open_page("topics/payments/messages?live=1")
    console.expect_text("No new messages yet")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})

    def shown() -> bool:
        producer.produce("payments", b"fresh news")
        producer.flush(SECONDS_MAX)
        return console.page.get_by_role("row").filter(has_text="fresh news").count() > 0

    until(shown, seconds=SECONDS_MAX, what="a message of the live view")


def test_a_live_view_that_ends_has_the_reason(open_page: OpenPage) -> None:
    """The topic is deleted while it is shown."""
    console = open_page("topics/payments/messages")
    api = f"{console.base}/api/v1/clusters/main/topics"
    headers = {"X-Riverrun-Console": "1"}
    topic = {"name": "ends", "partitions": 1}
    assert console.page.request.post(api, headers=headers, data=topic).ok
    console.go("topics/ends/messages?live=1")
    expect(console.page.get_by_text("live", exact=True)).to_be_visible()
    assert console.page.request.delete(f"{api}/ends", headers=headers).ok
    alert = console.page.get_by_role("alert").filter(has_text="UNKNOWN_TOPIC")
    expect(alert).to_contain_text("Pause and resume", timeout=SECONDS_MAX * 1000)


def test_a_refused_live_view_has_the_reason(open_page: OpenPage) -> None:
    console = open_page("topics/no-such-topic/messages?live=1")
    alert = console.page.get_by_role("alert").filter(has_text="There is no topic no-such-topic")
    expect(alert.first).to_be_visible(timeout=SECONDS_MAX * 1000)


def test_messages_are_downloaded(open_page: OpenPage) -> None:
    console = open_page("topics/orders/messages?from=earliest")
    console.button("Actions of these messages").click()
    console.page.get_by_role("menuitem", name=re.compile("Download")).click()
    with console.page.expect_download() as waiting:
        console.dialog().get_by_role("link", name="Download").click()
    lines = waiting.value.path().read_text().splitlines()
    assert len(lines) == 120
    assert {json.loads(line)["partition"] for line in lines} == {0, 1, 2}


def test_dead_letters_are_redriven_after_a_dry_run(open_page: OpenPage) -> None:
    console = open_page("topics/orders-dlq/messages")
    console.button("Redrive").click()
    console.dialog().get_by_label("To topic").fill("payments")
    expect(console.dialog()).to_contain_text("3 records would be written")
    console.submit("Redrive")
    console.expect_toast("3 records written")
    console.expect_heading("Messages of payments")


def test_topics_that_dead_letters_name_must_be_confirmed(open_page: OpenPage) -> None:
    console = open_page("topics/orders-dlq/messages")
    console.button("Redrive").click()
    target = console.dialog().get_by_role("checkbox", name="3 records to payments")
    expect(target).to_be_visible()
    redrive = console.dialog().get_by_role("button", name="Redrive", exact=True)
    expect(redrive).to_be_disabled()
    target.check()
    console.submit("Redrive")
    console.expect_toast("3 records written to payments")


def test_offsets_are_reset_after_a_dry_run(open_page: OpenPage, cluster: Cluster) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "resetting"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
    console = open_page("groups/resetting")
    console.button("Reset offsets").click()
    expect(console.dialog()).to_contain_text("7 records are read again")
    assert "riverrun groups reset-offsets resetting" in console.command()
    console.submit("Reset offsets")
    console.expect_toast("reset")
    (committed,) = consumer.committed([TopicPartition("orders", 0)], SECONDS_MAX)
    consumer.close()
    assert committed.offset == 0


def test_a_balance_is_planned_and_not_started(open_page: OpenPage) -> None:
    console = open_page("moves")
    console.button("Balance…").click()
    expect(console.dialog()).to_contain_text(
        re.compile("would change|No replica has to move"), timeout=SECONDS_MAX * 1000
    )
    assert "riverrun cluster balance" in console.command()
    console.page.keyboard.press("Escape")
    expect(console.page.get_by_role("dialog")).to_have_count(0)


def test_a_node_goes_into_maintenance_and_back(open_page: OpenPage) -> None:
    console = open_page("nodes/2")
    console.button("Start maintenance…").click()
    assert "riverrun cluster maintenance on 2" in console.command()
    console.submit("Start maintenance")
    console.expect_toast("Node 2 is in maintenance")
    console.button("End maintenance…").click()
    console.submit("End maintenance")
    expect(console.button("Start maintenance…")).to_be_visible(timeout=SECONDS_MAX * 1000)


@pytest.mark.parametrize(("is_voter", "words"), [(True, "Remove its vote"), (False, "stop it")])
def test_an_empty_decommissioned_node_can_be_stopped(
    open_page: OpenPage, is_voter: bool, words: str
) -> None:
    console = open_page("nodes")

    def answer(route: Route) -> None:
        found = route.fetch().json()
        emptied = {"mode": "decommissioning", "replicas": 0, "leaders": 0, "voter": is_voter}
        route.fulfill(content_type="application/json", body=json.dumps({**found, **emptied}))

    console.page.route(
        "**/nodes/3", lambda route: answer(route) if is_api(route) else route.continue_()
    )
    console.go("nodes/3")
    console.expect_text(words)
    expect(console.button("Undo decommissioning…")).to_be_visible()
    expect(console.button("Remove the vote…")).to_have_count(int(is_voter))
    expect(console.button("Decommission…")).to_have_count(0)
    expect(console.button("Start maintenance…")).to_have_count(0)


def is_api(route: Route) -> bool:
    return "/api/" in route.request.url


def test_the_timeline_names_what_changed(open_page: OpenPage) -> None:
    console = open_page("timeline")
    console.page.get_by_role("searchbox").fill("orders-dlq")
    console.expect_text("orders-dlq")


def test_users_log_in_and_get_the_rights_of_acls(
    secure_console: ConsolePage, secure: SecureNode
) -> None:
    """The first user adds a user and a rule, and sees why; then the new user logs in."""
    console = secure_console
    page = console.page
    page.get_by_label("User", exact=True).fill(secure.security["user"])
    page.get_by_label("Password", exact=True).fill("wrong")
    console.button("Log in").click()
    expect(page.get_by_role("alert")).to_be_visible(timeout=SECONDS_MAX * 1000)
    page.get_by_label("Password", exact=True).fill(secure.security["password"])
    console.button("Log in").click()
    console.expect_heading("Overview")
    assert secure.security["password"] not in page.content()

    console.go("users")
    console.button("Add a user…").click()
    dialog = console.dialog()
    dialog.get_by_label("Name").fill("alice")
    dialog.get_by_label("Password", exact=True).fill("wonderland-1")
    assert "wonderland" not in console.command()
    console.submit("Add")
    expect(page.get_by_role("row").filter(has_text="alice")).to_be_visible()

    console.go("acls?tab=why&user=alice&operation=read&type=topic&resource=diary")
    console.expect_text("Denied")

    console.go("overview")
    console.button("Log out").click()
    page.get_by_label("User", exact=True).fill("alice")
    page.get_by_label("Password", exact=True).fill("wonderland-1")
    console.button("Log in").click()
    expect(console.button("Log out")).to_be_visible(timeout=SECONDS_MAX * 1000)
    console.settle()
    assert page.locator("main .failure").count() == 0, "missing rights are no failure of charts"
    console.expect_text("needs the right Describe on the cluster")
    console.go("users")
    console.expect_text("right")
    expect(page.locator("main .failure code").first).to_have_text("riverrun acls check")
    assert console.failures == []


def test_each_cluster_has_its_own_login(
    chromium: Browser, secure: SecureNode, tmp_path: Path
) -> None:
    """The same nodes under two names: the login to one of them is not sent to the other."""
    properties = tmp_path / "tls.properties"
    authority = secure.security["ca"]
    properties.write_text(f"security.protocol=SASL_SSL\nssl.truststore.location={authority}\n")
    clusters = (f"main={secure.bootstrap}", f"other={secure.bootstrap}")
    words = [word for text in clusters for word in ("--cluster", text)]
    with serve_console(*words, "--command-config", str(properties)) as rest:
        console = ConsolePage.open(chromium, rest.base.removeprefix("http://"), "nodes")
        page = console.page
        console.expect_text("Log in as a user of the cluster main.")
        page.get_by_label("User", exact=True).fill(secure.security["user"])
        page.get_by_label("Password", exact=True).fill(secure.security["password"])
        console.button("Log in").click()
        console.expect_heading("Nodes")
        page.get_by_role("combobox", name="Cluster").select_option("other")
        console.expect_text("Log in as a user of the cluster other.")
        assert console.violations() == []
        page.get_by_role("combobox", name="Cluster").select_option("main")
        console.expect_heading("Overview")
        assert console.failures == []
        page.context.close()


def test_the_move_dialog_shows_no_number_before_a_node_is_chosen(open_page: OpenPage) -> None:
    console = open_page("topics/orders")
    console.button("Actions of this topic").click()
    console.page.get_by_role("menuitem", name="Move partitions…").click()
    dialog = console.dialog()
    expect(dialog.get_by_label("Node 3")).to_be_visible()
    assert dialog.get_by_text("0", exact=True).count() == 0, dialog.inner_text()
    lines = [line.strip() for line in dialog.inner_text().splitlines()]
    assert "0" not in lines


def test_a_move_behind_a_plan_says_that_it_waits(open_page: OpenPage) -> None:
    console = open_page("topics/orders")

    def answer(route: Route) -> None:
        plan = {"dry_run": True, "command": "riverrun topics move", "plan": None, "moves": []}
        route.fulfill(
            content_type="application/json", body=json.dumps({**plan, "behind": ["balance-1"]})
        )

    console.page.route("**/topics/orders/move", answer)
    console.button("Actions of this topic").click()
    console.page.get_by_role("menuitem", name="Move partitions…").click()
    console.dialog().get_by_label("Node 3").check()
    console.submit("Move")
    console.expect_toast("takes its turn behind plan balance-1")
