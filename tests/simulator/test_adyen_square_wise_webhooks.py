"""Webhooks of Adyen, Square and Wise, received over HTTP and verified by whoever did not sign them.

Adyen and Square by the official packages' own verifiers, Wise by `cryptography` and the published key.
"""

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from Adyen.util import is_valid_hmac_notification, is_valid_hmac_payload
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from square.utils.webhooks_helper import verify_signature

from tests.simulator.station import DAY, Receiver, Station

ADYEN_KEY = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
SQUARE_KEY = "sigkey"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Not yet known to anybody: each test says whose webhooks it takes."""
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def control(simulator: Station) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{simulator.url}/_sim", timeout=30) as client:
        yield client
        # Nothing is to be sent to a receiver that is gone.
        client.post("/reset").raise_for_status()


@pytest.fixture
def client(simulator: Station, control: httpx2.Client) -> Iterator[httpx2.Client]:
    headers = {"x-api-key": "any", "authorization": "Bearer any"}
    with httpx2.Client(base_url=simulator.url, headers=headers, timeout=30) as plain:
        yield plain


def advance(control: httpx2.Client, seconds: float = 0) -> None:
    """Also waits until everything that is due was sent."""
    control.post("/clock", json={"advance_seconds": seconds}).raise_for_status()


def listen(control: httpx2.Client, dialect: str, url: str, *secrets: str) -> None:
    control.put(f"/endpoints/{dialect}", json={"url": url, "secrets": secrets}).raise_for_status()


def plan(control: httpx2.Client, text: str) -> None:
    control.post("/faults", json={"plan": text}).raise_for_status()


# -- Adyen


def adyen_payment(client: httpx2.Client, reference: str = "order-1") -> str:
    asked = {
        "amount": {"currency": "EUR", "value": 1000},
        "merchantAccount": "TestMerchant",
        "reference": reference,
        "paymentMethod": {"type": "scheme"},
    }
    return str(client.post("/adyen/checkout/v72/payments", json=asked).json()["pspReference"])


def adyen_refund(client: httpx2.Client, psp: str) -> str:
    asked = {"amount": {"currency": "EUR", "value": 400}, "merchantAccount": "TestMerchant", "reference": "refund-1"}
    return str(client.post(f"/adyen/checkout/v72/payments/{psp}/refunds", json=asked).json()["pspReference"])


def adyen_transfer(client: httpx2.Client) -> str:
    asked = {
        "amount": {"currency": "EUR", "value": 1000},
        "category": "bank",
        "counterparty": {"transferInstrumentId": "SE1"},
        "priority": "regular",
        "reference": "payout-1",
    }
    return str(client.post("/adyen/btl/v4/transfers", json=asked).json()["id"])


def items(body: Any) -> list[Any]:
    return [wrapped["NotificationRequestItem"] for wrapped in body["notificationItems"]]


def test_each_item_of_adyen_is_signed(client: httpx2.Client, control: httpx2.Client, receiver: Receiver) -> None:
    listen(control, "adyen", receiver.url, ADYEN_KEY)
    control.put("/switches", json={"adyen.notification_items": "several"}).raise_for_status()
    psp = adyen_payment(client)
    back = adyen_refund(client, psp)
    advance(control, 10)
    authorised, refunded = receiver.events()
    [item] = items(authorised)
    assert (item["eventCode"], item["pspReference"], item["success"]) == ("AUTHORISATION", psp, "true")
    repeated, new = items(refunded)
    assert (repeated["eventCode"], repeated["pspReference"]) == ("AUTHORISATION", psp)
    assert (new["eventCode"], new["pspReference"], new["originalReference"]) == ("REFUND", back, psp)
    for each in (item, repeated, new):
        assert is_valid_hmac_notification(each, ADYEN_KEY)
        assert not is_valid_hmac_notification({**each, "success": "false"}, ADYEN_KEY)
        assert not is_valid_hmac_notification(each, "00" * 32)


def test_transfers_of_adyen_are_signed_as_a_whole(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver
) -> None:
    listen(control, "adyen", receiver.url, ADYEN_KEY)
    transfer_id = adyen_transfer(client)
    advance(control, 10)
    told = [(body["data"]["id"], body["data"]["sequenceNumber"], body["data"]["status"]) for body in receiver.events()]
    assert told == [(transfer_id, 1, "received"), (transfer_id, 2, "authorised"), (transfer_id, 3, "booked")]
    for headers, body in receiver.received:
        assert headers["protocol"] == "HmacSHA256"
        assert is_valid_hmac_payload(headers["hmacsignature"], ADYEN_KEY, body)
        assert not is_valid_hmac_payload(headers["hmacsignature"], ADYEN_KEY, body + b" ")


def test_adyen_tries_again_by_its_schedule_and_the_rest_waits(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver
) -> None:
    listen(control, "adyen", receiver.url, ADYEN_KEY)
    receiver.statuses = [500]
    adyen_payment(client, "first")
    adyen_payment(client, "second")
    advance(control)
    advance(control, 110)
    assert [items(body)[0]["merchantReference"] for body in receiver.events()] == ["first"]
    advance(control, 20)
    assert [items(body)[0]["merchantReference"] for body in receiver.events()] == ["first", "first", "second"]


def test_a_forged_notification_of_adyen_does_not_verify(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver
) -> None:
    listen(control, "adyen", receiver.url, ADYEN_KEY)
    plan(control, "adyen.*:webhook_forged@*")
    adyen_payment(client)
    adyen_transfer(client)
    advance(control)
    standard = [is_valid_hmac_notification(items(body)[0], ADYEN_KEY) for body in receiver.events() if "live" in body]
    whole = [
        is_valid_hmac_payload(headers["hmacsignature"], ADYEN_KEY, body)
        for headers, body in receiver.received
        if "hmacsignature" in headers
    ]
    assert sorted(standard) == [False, True]
    assert sorted(whole) == [False, True]


# -- Square


def square_payment(client: httpx2.Client, key: str = "key-1") -> str:
    asked = {
        "source_id": "cnon:card-nonce-ok",
        "idempotency_key": key,
        "amount_money": {"amount": 1000, "currency": "USD"},
    }
    return str(client.post("/square/v2/payments", json=asked).json()["payment"]["id"])


def is_squares(headers: dict[str, str], body: bytes, url: str) -> bool:
    return verify_signature(
        request_body=body.decode(),
        signature_header=headers["x-square-hmacsha256-signature"],
        signature_key=SQUARE_KEY,
        notification_url=url,
    )


def test_square_signs_its_address_and_the_body(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver
) -> None:
    listen(control, "square", receiver.url, SQUARE_KEY)
    payment_id = square_payment(client)
    advance(control)
    [(headers, body)] = receiver.received
    told = json.loads(body)
    assert (told["type"], told["data"]["id"]) == ("payment.created", payment_id)
    assert told["data"]["object"]["payment"]["status"] == "COMPLETED"
    assert is_squares(headers, body, receiver.url)
    assert not is_squares(headers, body, receiver.url + "/")


def test_a_redelivery_of_square_has_the_same_event_id(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver
) -> None:
    listen(control, "square", receiver.url, SQUARE_KEY)
    receiver.statuses = [503]
    square_payment(client)
    advance(control)
    advance(control, 61)
    first, second = receiver.events()
    assert first == second
    advance(control, DAY)
    assert len(receiver.received) == 2


def test_two_events_of_square_for_one_change_have_their_own_ids(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver
) -> None:
    listen(control, "square", receiver.url, SQUARE_KEY)
    plan(control, "square.payment:webhook_two_events")
    square_payment(client)
    advance(control)
    first, second = receiver.events()
    assert first["event_id"] != second["event_id"]
    assert first["data"] == second["data"]


def test_square_gives_up_within_a_day(client: httpx2.Client, control: httpx2.Client, receiver: Receiver) -> None:
    listen(control, "square", receiver.url, SQUARE_KEY)
    receiver.statuses = [500] * 100
    square_payment(client)
    for _ in range(30):
        advance(control, 3600)
    [delivery] = control.get("/deliveries", params={"dialect": "square"}).json()
    assert delivery["state"] == "failed"


def test_a_forged_event_of_square_does_not_verify(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver
) -> None:
    listen(control, "square", receiver.url, SQUARE_KEY)
    plan(control, "square.*:webhook_other_endpoint")
    square_payment(client)
    advance(control)
    assert sorted(is_squares(headers, body, receiver.url) for headers, body in receiver.received) == [False, True]


# -- Wise


def subscribe(client: httpx2.Client, url: str) -> rsa.RSAPublicKey:
    asked = {"name": "ours", "trigger_on": "transfers#state-change", "delivery": {"version": "2.0.0", "url": url}}
    assert client.post("/wise/v3/profiles/102/subscriptions", json=asked).status_code == 201
    published = client.get("/wise/v1/webhook-public-key")
    assert published.status_code == 200
    key = serialization.load_pem_public_key(published.content)
    assert isinstance(key, rsa.RSAPublicKey)
    return key


def is_wises(key: rsa.RSAPublicKey, headers: dict[str, str], body: bytes) -> bool:
    try:
        key.verify(b64decode(headers["x-signature-sha256"]), body, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return False
    return True


def wise_transfer(client: httpx2.Client, reference: str = "7f1bb6ee-4b7e-4a52-9d6c-0f0f7f6a1111") -> int:
    amounts = {"sourceCurrency": "EUR", "targetCurrency": "EUR", "targetAmount": 100}
    person = {
        "profile": 102,
        "accountHolderName": "Ada",
        "currency": "EUR",
        "type": "iban",
        "details": {"iban": "DE89"},
    }
    asked = {
        "targetAccount": client.post("/wise/v1/accounts", json=person).json()["id"],
        "quoteUuid": client.post("/wise/v3/profiles/102/quotes", json=amounts).json()["id"],
        "customerTransactionId": reference,
        "details": {},
    }
    return int(client.post("/wise/v1/transfers", json=asked).json()["id"])


def test_wise_signs_with_its_private_key(client: httpx2.Client, control: httpx2.Client, receiver: Receiver) -> None:
    key = subscribe(client, receiver.url)
    transfer_id = wise_transfer(client)
    client.post(f"/wise/v3/profiles/102/transfers/{transfer_id}/payments", json={"type": "BALANCE"}).raise_for_status()
    advance(control, 10)
    told = sorted(
        (body["data"]["occurred_at"], body["data"]["previous_state"], body["data"]["current_state"])
        for body in receiver.events()
        if body["data"]["current_state"] != "incoming_payment_waiting"
    )
    assert {(before, after) for _, before, after in told} == {
        ("incoming_payment_waiting", "processing"),
        ("processing", "funds_converted"),
        ("funds_converted", "outgoing_payment_sent"),
    }
    for headers, body in receiver.received:
        assert is_wises(key, headers, body)
        assert not is_wises(key, headers, body + b" ")
        resource = json.loads(body)["data"]["resource"]
        assert (resource["id"], resource["profile_id"], resource["type"]) == (transfer_id, 102, "transfer")
        assert json.loads(body)["event_type"] == "transfers#state-change"


def test_a_redelivery_of_wise_has_another_delivery_id(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver
) -> None:
    key = subscribe(client, receiver.url)
    receiver.statuses = [500]
    wise_transfer(client)
    advance(control)
    advance(control, 61)
    (first, first_body), (second, second_body) = receiver.received
    assert first["x-delivery-id"] != second["x-delivery-id"]
    assert json.loads(first_body)["data"] == json.loads(second_body)["data"]
    assert is_wises(key, first, first_body)
    assert is_wises(key, second, second_body)


def test_wise_waits_as_long_as_the_receiver_asks(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver
) -> None:
    subscribe(client, receiver.url)
    receiver.statuses, receiver.retry_after = [503], "7200"
    wise_transfer(client)
    advance(control)
    advance(control, 7100)
    assert len(receiver.received) == 1
    advance(control, 101)
    assert len(receiver.received) == 2


@pytest.mark.parametrize(("tries", "made"), [("25", 25), ("3", 3)])
def test_wise_may_give_up_early_on_a_client_error(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver, tries: str, made: int
) -> None:
    subscribe(client, receiver.url)
    control.put("/switches", json={"wise.client_error_tries": tries}).raise_for_status()
    receiver.statuses = [404] * 100
    wise_transfer(client)
    for _ in range(40):
        advance(control, 86_400)
    # Another event tells, after two weeks, that nobody funded it.
    states = [json.loads(body)["data"]["current_state"] for _, body in receiver.received]
    assert states.count(states[0]) == made


def test_a_new_subscription_keeps_the_key(client: httpx2.Client, receiver: Receiver) -> None:
    first, second = subscribe(client, receiver.url), subscribe(client, receiver.url + "/2")
    assert first.public_numbers() == second.public_numbers()


def test_a_private_key_of_the_tests_own_can_be_set(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    listen(control, "wise", receiver.url, key.private_bytes(encoding, form, serialization.NoEncryption()).decode())
    wise_transfer(client)
    advance(control)
    [(headers, body)] = receiver.received
    assert is_wises(key.public_key(), headers, body)


def test_a_forged_event_of_wise_does_not_verify(
    client: httpx2.Client, control: httpx2.Client, receiver: Receiver
) -> None:
    key = subscribe(client, receiver.url)
    plan(control, "wise.*:webhook_forged")
    wise_transfer(client)
    advance(control)
    assert sorted(is_wises(key, headers, body) for headers, body in receiver.received) == [False, True]


def test_without_a_subscription_there_is_no_public_key(client: httpx2.Client) -> None:
    assert client.get("/wise/v1/webhook-public-key").status_code == 404


def test_seeded_faults_of_calls_without_a_key_do_not_depend_on_the_order(
    client: httpx2.Client, control: httpx2.Client
) -> None:
    """A transfer's id is another one in another order; the reference its client gave it is not."""
    references = [f"7f1bb6ee-4b7e-4a52-9d6c-0f0f7f6a11{number:02}" for number in range(12)]
    struck = []
    for order in (references, references[::-1]):
        control.post("/reset").raise_for_status()
        control.post("/faults", json={"plan": "wise.fund:gateway_503=50%", "seed": 3}).raise_for_status()
        paid = {reference: fund(client, wise_transfer(client, reference)) for reference in order}
        struck.append({reference for reference, status in paid.items() if status == 503})
    assert 0 < len(struck[0]) < len(references)
    assert struck[0] == struck[1]


def fund(client: httpx2.Client, transfer_id: int) -> int:
    path = f"/wise/v3/profiles/102/transfers/{transfer_id}/payments"
    return client.post(path, json={"type": "BALANCE"}).status_code
