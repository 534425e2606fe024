"""What the forms of the simulator's page do, seen from a client of the simulator."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
import stripe

from tallystick.simulator.page.words import ACTIONS
from tests.simulator.browser import Browser, refused
from tests.simulator.station import DAY, Receiver, Station, pay, transfer


@pytest.fixture
def browser(simulator: Station) -> Browser:
    return Browser(simulator.url)


@pytest.fixture
def client(simulator: Station) -> Any:
    return simulator.stripe()


def test_a_planned_fault_strikes_and_is_counted(browser: Browser, client: Any, simulator: Station) -> None:
    browser.do("plan", dialect="stripe", operation="transfer", fault="gateway_503", argument="", calls="2", rate="")
    transfer(client)
    with pytest.raises(stripe.APIError) as struck:
        transfer(client)
    assert struck.value.http_status == 503
    transfer(client)
    shown = " ".join(browser.section("faults").split())
    assert re.search(r"stripe\.transfer:gateway_503@2 gateway_503 : .* 3 1 ", shown)
    browser.do("clear_faults")
    assert "None in force" in browser.section("faults")


def test_an_argument_is_handed_on(browser: Browser, client: Any) -> None:
    browser.do("plan", dialect="stripe", operation="refund", fault="refused", argument="charge_disputed")
    paid = pay(client)
    with pytest.raises(stripe.InvalidRequestError) as struck:
        client.refunds.create({"payment_intent": paid.id})
    assert struck.value.code == "charge_disputed"


def test_a_rate_strikes_every_call_at_a_hundred_percent(browser: Browser, client: Any) -> None:
    browser.do("plan", dialect="*", operation="", fault="rate_limited", rate="100%")
    for _ in range(3):
        with pytest.raises(stripe.RateLimitError):
            transfer(client)
    browser.do("seed", seed="42")
    assert 'name="seed" inputmode="numeric" size="12" value="42"' in browser.get().text


def test_a_webhook_fault_is_planned_by_a_part_of_the_event(
    browser: Browser, client: Any, receiver: Receiver, simulator: Station
) -> None:
    browser.do("plan", dialect="stripe", operation="transfer.created", fault="webhook_lost", calls="*")
    transfer(client)
    simulator.advance(DAY)
    assert receiver.received == []
    assert "transfer.created lost 0" in " ".join(browser.section("deliveries").split())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"fault": "explode"}, "'explode' is not a fault. Choose one of: refused,"),
        ({"dialect": "paypal"}, "'paypal' is not a provider. Choose one of: stripe, adyen, square, wise, *."),
        ({"operation": "tranfser"}, "There is no operation 'tranfser'. There are: charge,"),
        ({"calls": "two"}, "is no rule"),
        ({"calls": "0"}, "calls count from 1 upwards"),
        ({"rate": "101"}, "a rate is 0% to 100%"),
        ({"calls": "1", "rate": "5"}, "Give either the calls or a rate"),
        ({"argument": "7"}, "gateway_503 takes no argument"),
        ({"calls": "1, stripe.refund:hang@*"}, "is more than one rule"),
        ({"operation": "transfer\nstripe.refund"}, "operation is one line"),
        ({"fault": "error_703"}, "error_703 is a fault of adyen, not of stripe"),
    ],
)
def test_a_wrong_plan_is_refused_with_a_sentence(
    browser: Browser, simulator: Station, fields: dict[str, str], sentence: str
) -> None:
    plan = {"dialect": "stripe", "operation": "transfer", "fault": "gateway_503", **fields}
    assert sentence in refused(browser.send("plan", **plan))
    assert simulator.call("GET", "faults")["active"] == []


@pytest.mark.parametrize("seconds", [3600, DAY, 7 * DAY])
def test_the_clock_goes_forward(browser: Browser, simulator: Station, seconds: int) -> None:
    before = simulator.call("GET", "clock")["offset_seconds"]
    browser.do("clock", seconds=str(seconds))
    assert simulator.call("GET", "clock")["offset_seconds"] == before + seconds
    assert "ahead of real time" in browser.section("clock")
    assert "is not a step of the clock" in refused(browser.send("clock", seconds="-3600"))


def test_a_key_is_forgotten_when_the_clock_goes_on(browser: Browser, client: Any) -> None:
    first = transfer(client, "key-1")
    assert transfer(client, "key-1").id == first.id
    browser.do("clock", seconds=str(DAY))
    assert transfer(client, "key-1").id != first.id


def test_a_payout_is_made_to_fail_after_it_was_paid(browser: Browser, client: Any) -> None:
    payout = client.payouts.create({"amount": 5000, "currency": "usd"})
    for action, status in (("pay", "paid"), ("fail", "failed")):
        browser.do("act", dialect="stripe", id=payout.id, action=action)
        assert client.payouts.retrieve(payout.id).status == status
    assert f"{payout.id} is returned now" in refused(browser.send("act", dialect="stripe", id=payout.id, action="pay"))


def test_a_waiting_payment_can_be_decided(browser: Browser, client: Any) -> None:
    waiting = pay(client, payment_method="pm_card_authenticationRequired")
    assert f'name="id" value="{waiting.id}"' in browser.get().text
    browser.do("act", dialect="stripe", id=waiting.id, action="succeed")
    assert client.payment_intents.retrieve(waiting.id).status == "succeeded"


def test_what_cannot_happen_is_said(browser: Browser, client: Any) -> None:
    made = transfer(client)
    unknown = refused(browser.send("act", dialect="stripe", id="tr_none", action="reverse"))
    assert unknown.startswith("stripe has no object 'tr_none'")
    wrong = refused(browser.send("act", dialect="stripe", id=made.id, action="bounce"))
    assert wrong == "'bounce' is not something that can happen to a transfer of stripe. Choose one of: reverse."
    assert "is not a provider" in refused(browser.send("act", dialect="paypal", id=made.id, action="reverse"))


def test_switches_are_set_together_or_not_at_all(browser: Browser, simulator: Station) -> None:
    browser.do("switches", **{"stripe.original_request_header": "absent", "adyen.transfer_status": "200"})
    values = {switch["name"]: switch["value"] for switch in simulator.call("GET", "switches")}
    assert values["stripe.original_request_header"] == "absent"
    assert values["adyen.transfer_status"] == "200"
    wrong = {"adyen.transfer_status": "202", "stripe.original_request_header": "perhaps"}
    assert "'perhaps' is not a value of stripe.original_request_header" in refused(browser.send("switches", **wrong))
    assert {switch["name"]: switch["value"] for switch in simulator.call("GET", "switches")} == values
    assert "There is no switch 'stripe.mood'" in refused(browser.send("switches", **{"stripe.mood": "bad"}))


def test_webhooks_go_where_the_form_says(browser: Browser, client: Any, simulator: Station, receiver: Receiver) -> None:
    simulator.call("DELETE", "endpoints/stripe")
    page = browser.do(
        "endpoint", dialect="stripe", url=receiver.url, secret="whsec_of_the_form", older_secret="whsec_o"
    )
    assert receiver.url in page
    assert "whsec_of_the_form" not in page
    transfer(client)
    simulator.advance(0)
    headers, body = receiver.received[0]
    for secret in ("whsec_of_the_form", "whsec_o"):
        assert stripe.WebhookSignature.verify_header(body.decode(), headers["stripe-signature"], secret)
    browser.do("endpoint", dialect="stripe", url="")
    assert simulator.call("GET", "endpoints")["stripe"] is None


def test_wise_gets_a_key_pair_of_its_own(browser: Browser, simulator: Station) -> None:
    browser.do("endpoint", dialect="wise", url="http://127.0.0.1:9/hook")
    headers = {"authorization": "Bearer x"}
    published = httpx2.get(f"{simulator.url}/wise/v1/webhook-public-key", headers=headers)
    assert published.text.startswith("-----BEGIN PUBLIC KEY-----")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"url": "ftp://127.0.0.1/"}, "is no address for webhooks"),
        ({"url": "http://127.0.0.1:99999/"}, "is no address for webhooks"),
        ({"url": "http://a b/"}, "is no address for webhooks"),
        ({"url": "http://127.0.0.1/\r\nx: y"}, "url is one line"),
        ({"secret": ""}, "give the secret your receiver checks them with"),
        ({"dialect": "adyen", "secret": "whsec_1"}, "HMAC key in hexadecimal"),
        ({"dialect": "paypal"}, "is not a provider"),
    ],
)
def test_a_wrong_webhook_address_is_refused(
    browser: Browser, simulator: Station, fields: dict[str, str], sentence: str
) -> None:
    given = {"dialect": "stripe", "url": "http://127.0.0.1:9/hook", "secret": "whsec_1", **fields}
    assert sentence in refused(browser.send("endpoint", **given))
    assert set(simulator.call("GET", "endpoints").values()) == {None}


def test_books_are_emptied_only_by_one_who_is_sure(browser: Browser, client: Any) -> None:
    transfer(client)
    assert "Tick the box first" in refused(browser.send("reset"))
    assert "Nothing yet" not in browser.section("books-stripe")
    browser.do("reset", sure="yes")
    assert "Nothing yet" in browser.section("books-stripe")


def objects(simulator: Station) -> dict[tuple[str, str], str]:
    """One of every kind that something can happen to."""
    client = simulator.stripe()
    http = httpx2.Client(base_url=simulator.url, headers={"authorization": "Bearer x", "x-api-key": "x"}, timeout=30)

    def made(path: str, body: dict[str, Any]) -> Any:
        answer = http.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    paid = pay(client)
    euros = {"currency": "EUR", "value": 1000}
    adyen = "/adyen/checkout/v72/payments"
    card = {"type": "scheme", "storedPaymentMethodId": "card"}
    charge = made(adyen, {"amount": euros, "merchantAccount": "M", "reference": "order-1", "paymentMethod": card})
    refund = made(f"{adyen}/{charge['pspReference']}/refunds", {"amount": euros, "merchantAccount": "M"})
    bank = {"balanceAccountId": "BA1", "category": "bank", "counterparty": {"transferInstrumentId": "SE_good"}}
    sent = made("/adyen/btl/v4/transfers", {"amount": euros, "priority": "regular", "reference": "payout-1", **bank})
    money = {"amount": 1000, "currency": "USD"}
    source = {"source_id": "cnon:card-nonce-ok", "idempotency_key": "key-1"}
    payment = made("/square/v2/payments", {"amount_money": money, **source})["payment"]
    asked = {"payment_id": payment["id"], "idempotency_key": "key-2"}
    returned = made("/square/v2/refunds", {"amount_money": {**money, "amount": 100}, **asked})["refund"]
    same = {"sourceCurrency": "EUR", "targetCurrency": "EUR"}
    quote = made("/wise/v3/profiles/102/quotes", {**same, "targetAmount": 12.5, "payOut": "BANK_TRANSFER"})
    details = {"legalType": "PRIVATE", "IBAN": "DE89370400440532013000"}
    owner = {"profile": 102, "accountHolderName": "Ada Byron", "currency": "EUR", "type": "iban", "details": details}
    wanted = {"targetAccount": made("/wise/v1/accounts", owner)["id"], "quoteUuid": quote["id"]}
    own = {"customerTransactionId": "0a6b8e1e-6d5f-4f0e-8f6f-0d4b7c9a1e11", "details": {"reference": "payout-1"}}
    return {
        ("stripe", "transfer"): transfer(client).id,
        ("stripe", "payout"): client.payouts.create({"amount": 500, "currency": "usd"}).id,
        ("stripe", "refund"): client.refunds.create({"payment_intent": paid.id}).id,
        ("stripe", "payment_intent"): pay(client, payment_method="pm_card_authenticationRequired").id,
        ("adyen", "transfer"): sent["id"],
        ("adyen", "refund"): refund["pspReference"],
        ("adyen", "charge"): charge["pspReference"],
        ("square", "charge"): payment["id"],
        ("square", "refund"): returned["id"],
        ("wise", "transfer"): str(made("/wise/v1/transfers", {**wanted, **own})["id"]),
    }


def test_every_offered_action_is_done_or_answered_with_a_sentence(browser: Browser, simulator: Station) -> None:
    found = objects(simulator)
    done = set()
    for name, kinds in ACTIONS.items():
        for kind, actions in kinds.items():
            if (name, kind) == ("square", "payout"):
                # What paying a payment out has made, further up in this loop.
                found[name, kind] = simulator.call("GET", "objects?dialect=square&kind=payout")[0]["id"]
            for action in actions:
                answer = browser.send("act", dialect=name, id=found[name, kind], action=action)
                if answer.status_code == 303:
                    done.add((name, kind))
                else:
                    assert refused(answer).startswith("Nothing changed:"), (name, kind, action)
    # A card that is charged at once leaves nothing to decide about at Adyen.
    assert done == {(name, kind) for name, kinds in ACTIONS.items() for kind in kinds} - {("adyen", "charge")}


def test_a_reset_also_forgets_what_is_still_to_come(browser: Browser, simulator: Station) -> None:
    simulator.plan("stripe.transfer:slow_before(1)")
    client = simulator.stripe(timeout=3)
    with ThreadPoolExecutor() as pool:
        pool.submit(transfer, client)
        while not simulator.struck():
            time.sleep(0.01)
        browser.do("reset", sure="yes")
    assert simulator.movements("transfer") == []


def test_the_clock_of_the_page_has_an_end(browser: Browser, simulator: Station) -> None:
    before = simulator.call("GET", "clock")["offset_seconds"]
    simulator.advance(36_525 * DAY - before - 60)
    assert "36525 days" in refused(browser.send("clock", seconds="3600"))
