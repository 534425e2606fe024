"""What the simulator's page shows, and whom it answers, against a real simulator."""

import html
import re
from typing import Any

import httpx2
import pytest

from tallystick.simulator.catalogue import CATALOGUE
from tallystick.simulator.dialect import Request
from tallystick.simulator.dialects import every_dialect
from tallystick.simulator.guard import refusal
from tallystick.simulator.page.words import POINTING, STAGES
from tests.simulator.browser import Browser, refused
from tests.simulator.station import DAY, Receiver, Station, pay, transfer

HOSTILE = "<script>alert('x')</script>\"'&"


@pytest.fixture
def browser(simulator: Station) -> Browser:
    return Browser(simulator.url)


@pytest.fixture
def client(simulator: Station) -> Any:
    return simulator.stripe()


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing(browser: Browser) -> None:
    answer = browser.get()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; form-action 'self'")
    assert "<script" not in answer.text
    assert "style=" not in answer.text
    assert set(re.findall(r'(?:src|href|action)="([^"#?]*)', answer.text)) - {""} <= {
        "/",
        "/page.css",
        *re.findall(r'action="(/page/\w+)"', answer.text),
    }
    style = browser.get("/page.css")
    assert style.headers["content-type"] == "text/css; charset=utf-8"
    assert "url(" not in style.text


def test_it_refreshes_only_when_asked(browser: Browser) -> None:
    assert "http-equiv" not in browser.get().text
    assert '<meta http-equiv="refresh" content="5">' in browser.get("/?refresh=5").text
    assert '<meta http-equiv="refresh" content="3600">' in browser.get("/?refresh=99999999999").text
    assert "http-equiv" not in browser.get("/?refresh=%22%3E").text


def test_every_dialect_has_its_address_and_how_to_use_it(browser: Browser) -> None:
    shown = browser.section("addresses")
    for name, pointing in POINTING.items():
        assert f"{browser.url}/{name}" in shown
        assert f"TALLY_{name.upper()}_API_BASE={browser.url}/{name}" in shown
        assert pointing.package in shown
    assert f'base_addresses={{"api": "{browser.url}/stripe"}}' in shown


def test_empty_books_say_so(browser: Browser) -> None:
    assert "Nothing yet" in browser.section("books-stripe")
    assert "Nothing was announced yet" in browser.section("events")
    assert "None in force" in browser.section("faults")


def test_the_books_show_sums_and_movements(browser: Browser, client: Any) -> None:
    first = transfer(client, amount=320, transfer_group="payout-7")
    transfer(client, amount=100, transfer_group="payout-8")
    pay(client, amount=1000, currency="jpy")
    shown = " ".join(browser.section("books-stripe").split())
    assert "transfer moved 2 4.20 USD" in shown
    assert "charge moved 1 1000 JPY" in shown
    assert re.search(rf"{first.id} transfer payout-7 3\.20 USD moved", shown)
    assert "Nothing yet" in browser.section("books-wise")


def test_wise_amounts_are_shown_in_major_units(simulator: Station, browser: Browser) -> None:
    quote = {"sourceCurrency": "EUR", "targetCurrency": "EUR", "sourceAmount": 12.5, "payOut": "BANK_TRANSFER"}
    headers = {"authorization": "Bearer x"}
    made = httpx2.post(f"{simulator.url}/wise/v3/profiles/102/quotes", json=quote, headers=headers)
    assert made.status_code == 200
    assert "quote waiting 1 12.50 EUR" in " ".join(browser.section("books-wise").split())


def test_only_the_latest_fifty_movements_are_listed(browser: Browser, client: Any) -> None:
    made = [transfer(client, transfer_group=f"payout-{number}").id for number in range(51)]
    shown = browser.section("books-stripe")
    assert made[0] not in shown
    assert all(id_ in shown for id_ in made[1:])


def test_events_and_deliveries_show_tries_and_answers(
    browser: Browser, simulator: Station, client: Any, receiver: Receiver
) -> None:
    receiver.statuses = [503]
    made = transfer(client)
    simulator.advance(0)
    assert made.id in browser.section("events")
    sent = " ".join(browser.section("deliveries").split())
    assert re.search(r"transfer\.created pending 1 HTTP 503 \d{4}-", sent)
    simulator.advance(DAY)
    sent = " ".join(browser.section("deliveries").split())
    assert "stripe: 1 delivered" in sent
    assert "transfer.created delivered 2 HTTP 200" in sent


def test_remembered_keys_are_counted(browser: Browser, client: Any) -> None:
    transfer(client, "key-1")
    transfer(client, "key-2")
    assert "Stripe 2" in " ".join(browser.section("keys").split())


def test_the_whole_catalogue_is_explained(browser: Browser) -> None:
    shown = browser.section("catalogue")
    for fault in CATALOGUE.values():
        assert fault.name in shown
        assert fault.meaning in shown
        assert fault.source in shown
    for words in STAGES.values():
        assert words.meaning in shown


def test_a_fault_of_the_catalogue_fills_in_the_form(browser: Browser) -> None:
    assert "<option selected>execute_then_drop</option>" in browser.get("/?fault=execute_then_drop").text
    assert "selected>none_such" not in browser.get("/?fault=none_such").text


def test_every_switch_can_be_chosen(browser: Browser) -> None:
    page = browser.get().text
    for dialect in every_dialect():
        for switch in dialect.switches:
            assert f'name="{switch.name}"' in page
            assert html.escape(switch.source, quote=True) in page


def test_a_wide_table_scrolls_alone_on_a_narrow_screen(browser: Browser) -> None:
    """Labels that are only heard are positioned: where their table's frame is not, they widen the whole page."""
    assert ".wide { position: relative; overflow-x: auto; }" in browser.get("/page.css").text


def test_hostile_text_of_a_client_is_escaped(browser: Browser, client: Any, simulator: Station) -> None:
    transfer(client, transfer_group=HOSTILE)
    simulator.call("PUT", "endpoints/stripe", {"url": f"http://127.0.0.1:9/{HOSTILE}", "secrets": ["whsec_1"]})
    page = browser.get().text
    assert "<script" not in page
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&#34;&#39;&amp;" in page
    assert "<script" not in browser.send("act", dialect="stripe", id=HOSTILE, action="fail").text


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://{own}"])
def test_a_form_of_another_site_is_refused(browser: Browser, simulator: Station, client: Any, origin: str) -> None:
    transfer(client)
    headers = {"origin": origin.format(own=browser.url.removeprefix("http://"))}
    answer = browser.post("reset", {"sure": "yes"}, headers)
    assert answer.status_code == 403
    assert "only the simulator's own page may send it. Nothing was changed." in answer.text
    assert len(simulator.movements("transfer")) == 1


def test_a_form_without_an_origin_is_refused(browser: Browser) -> None:
    answer = browser.post("clear_faults", {}, {})
    assert answer.status_code == 403
    assert "does not say where it comes from" in answer.text


def test_a_foreign_name_for_this_machine_is_refused(browser: Browser) -> None:
    """DNS rebinding: the name is the attacker's, the address is ours."""
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "192.0.2.7"):
        answer = browser.get(host=host)
        assert answer.status_code == 403, host
        assert "Open it at the address the simulator printed" in answer.text
    rebound = {"host": "evil.example", "origin": "http://evil.example"}
    assert browser.post("clear_faults", {}, rebound).status_code == 403


def test_localhost_is_as_good_as_its_number(browser: Browser) -> None:
    port = browser.url.rpartition(":")[2]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert browser.get(host=host).status_code == 200
        own = {"host": host, "origin": f"http://{host}"}
        assert browser.post("clear_faults", {}, own).status_code == 303


@pytest.mark.parametrize(
    ("bound", "host", "welcome"),
    [
        ("192.0.2.7", "192.0.2.7:8090", True),
        ("192.0.2.7", "192.0.2.8:8090", False),
        ("192.0.2.7", "simulator.example:8090", False),
        ("::", "192.0.2.8:8090", True),
        ("::", "simulator.example:8090", False),
    ],
)
def test_the_bound_address_is_its_own(bound: str, host: str, *, welcome: bool) -> None:
    assert (refusal(Request("GET", "/", {}, {"host": host}, b""), bound, is_form=False) is None) is welcome


def test_other_methods_and_paths_are_not_there(browser: Browser) -> None:
    assert browser.get("/nothing").status_code == 404
    assert browser.get("/page/none_such").status_code == 404
    assert browser.get("/page/reset").status_code == 405
    assert httpx2.post(browser.url, headers={"origin": browser.url}).status_code == 405


def test_what_is_no_form_is_refused(browser: Browser) -> None:
    headers = {"origin": browser.url, "content-type": "text/plain"}
    answer = httpx2.post(f"{browser.url}/page/reset", content=b"sure=yes", headers=headers)
    assert refused(answer) == "A form is sent as application/x-www-form-urlencoded."
    headers["content-type"] = "application/x-www-form-urlencoded"
    for body in (b"\xff\xfe", b"a=%ff", b"&".join(b"a=1" for _ in range(300))):
        answer = httpx2.post(f"{browser.url}/page/reset", content=body, headers=headers)
        assert refused(answer) == "The form cannot be read."
