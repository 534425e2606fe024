"""Wise has no official package: its four calls, spoken with a plain HTTP client."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from tests.simulator.station import DAY, Station

PROFILE = 102


@pytest.fixture
def control(simulator: Station) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{simulator.url}/_sim", timeout=30) as client:
        yield client


@pytest.fixture
def wise(simulator: Station, control: httpx2.Client) -> Iterator[httpx2.Client]:
    headers = {"authorization": "Bearer any"}
    with httpx2.Client(base_url=f"{simulator.url}/wise", headers=headers, timeout=30) as client:
        yield client


def quote(wise: httpx2.Client, **fields: Any) -> httpx2.Response:
    asked = {"sourceCurrency": "EUR", "targetCurrency": "EUR", "targetAmount": 100} | fields
    return wise.post(f"/v3/profiles/{PROFILE}/quotes", json={key: value for key, value in asked.items() if value})


def recipient(wise: httpx2.Client, currency: str = "EUR", iban: str = "DE89370400440532013000") -> int:
    asked = {
        "profile": PROFILE,
        "accountHolderName": "Ada Lovelace",
        "currency": currency,
        "type": "iban",
        "details": {"iban": iban},
    }
    answer = wise.post("/v1/accounts", json=asked)
    assert answer.status_code == 200
    return int(answer.json()["id"])


def prepared(wise: httpx2.Client, key: str | None = None, **fields: Any) -> dict[str, Any]:
    """The body of a transfer whose quote and recipient are made."""
    return {
        "targetAccount": recipient(wise),
        "quoteUuid": quote(wise).json()["id"],
        "customerTransactionId": key or str(uuid4()),
        "details": {"reference": "thanks"},
    } | fields


def create(wise: httpx2.Client, body: dict[str, Any]) -> httpx2.Response:
    return wise.post("/v1/transfers", json=body)


def made(wise: httpx2.Client, **fields: Any) -> int:
    answer = create(wise, prepared(wise, **fields))
    assert answer.status_code == 200
    return int(answer.json()["id"])


def fund(wise: httpx2.Client, transfer_id: int, profile: int = PROFILE) -> httpx2.Response:
    return wise.post(f"/v3/profiles/{profile}/transfers/{transfer_id}/payments", json={"type": "BALANCE"})


def funded(wise: httpx2.Client, **fields: Any) -> int:
    transfer_id = made(wise, **fields)
    assert fund(wise, transfer_id).json()["status"] == "COMPLETED"
    return transfer_id


def status_of(wise: httpx2.Client, transfer_id: int) -> str:
    return str(wise.get(f"/v1/transfers/{transfer_id}").json()["status"])


def code_of(answer: httpx2.Response) -> str:
    return str(answer.json()["errors"][0]["code"])


def advance(control: httpx2.Client, seconds: float) -> None:
    control.post("/clock", json={"advance_seconds": seconds}).raise_for_status()


def switch(control: httpx2.Client, **values: str) -> None:
    named = {f"wise.{name}": value for name, value in values.items()}
    control.put("/switches", json=named).raise_for_status()


def plan(control: httpx2.Client, text: str) -> None:
    control.post("/faults", json={"plan": text}).raise_for_status()


def act(control: httpx2.Client, action: str, transfer_id: int) -> None:
    control.post("/act", json={"dialect": "wise", "action": action, "id": str(transfer_id)}).raise_for_status()


def movements(control: httpx2.Client) -> list[tuple[str, int, str]]:
    rows = control.get("/movements", params={"dialect": "wise"}).json()
    return [(row["state"], row["amount"], row["currency"]) for row in rows]


def states_told(control: httpx2.Client, transfer_id: int) -> list[str]:
    rows = control.get("/events", params={"dialect": "wise", "object_id": str(transfer_id)}).json()
    return [row["body"]["data"]["current_state"] for row in reversed(rows)]


# -- quotes and recipients


def test_a_quote_keeps_the_amount_that_was_given_and_adds_its_fee(wise: httpx2.Client) -> None:
    answer = quote(wise, targetAmount=100)
    decimals = json.loads(answer.content, parse_float=Decimal)
    assert (decimals["targetAmount"], decimals["sourceAmount"]) == (Decimal("100.00"), Decimal("100.50"))
    assert decimals["paymentOptions"][0]["fee"]["total"] == Decimal("0.50")
    assert b'"sourceAmount":100.50' in answer.content
    given = quote(wise, targetAmount=None, sourceAmount=100, targetCurrency="JPY").json()
    assert (given["sourceAmount"], given["targetAmount"]) == (100, 16222)
    shown = wise.get(f"/v3/profiles/{PROFILE}/quotes/{given['id']}").json()
    assert shown == given


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"targetAmount": 0.001}, "error.amount.scale"),
        ({"targetCurrency": "JPY", "targetAmount": 10.5}, "error.amount.scale"),
        ({"targetCurrency": "KWD", "targetAmount": 1.0005}, "error.amount.scale"),
        ({"targetAmount": -1}, "error.amount.positive"),
        ({"sourceAmount": 5}, "NOT_VALID"),
        ({"targetAmount": None}, "NOT_VALID"),
        ({"targetAmount": True}, "NOT_VALID"),
        ({"targetCurrency": "XXX"}, "error.currency.unsupported"),
        ({"targetAmount": None, "sourceAmount": 0.01}, "error.amount.too.low"),
    ],
)
def test_a_wrong_quote_is_refused(wise: httpx2.Client, fields: Any, code: str) -> None:
    answer = quote(wise, **fields)
    assert (answer.status_code, code_of(answer)) == (422, code)


def test_three_decimals_are_good_where_the_currency_has_them(wise: httpx2.Client) -> None:
    assert b'"targetAmount":1.005' in quote(wise, targetCurrency="KWD", targetAmount=1.005).content


def test_a_recipient_made_twice_is_two_recipients(wise: httpx2.Client) -> None:
    first, second = recipient(wise), recipient(wise)
    assert first != second
    assert wise.get(f"/v1/accounts/{first}").json()["details"] == {"iban": "DE89370400440532013000"}
    listed = wise.get("/v1/accounts", params={"profile": PROFILE, "currency": "EUR"}).json()
    assert {row["id"] for row in listed} == {first, second}
    assert wise.get("/v1/accounts/999").status_code == 404
    assert wise.post("/v1/accounts", json={"currency": "EUR"}).status_code == 422


def test_profiles_are_listed_under_every_prefix(wise: httpx2.Client) -> None:
    for prefix in ("v1", "v2", "2026Q3"):
        assert [row["type"] for row in wise.get(f"/{prefix}/profiles").json()] == ["personal", "business"]


# -- the transfer


def test_a_funded_transfer_goes_by_itself(wise: httpx2.Client, control: httpx2.Client) -> None:
    transfer_id = made(wise)
    assert movements(control) == []
    answer = fund(wise, transfer_id)
    assert (answer.status_code, answer.json()["status"], answer.json()["errorCode"]) == (201, "COMPLETED", None)
    assert status_of(wise, transfer_id) == "processing"
    advance(control, 2.5)
    assert status_of(wise, transfer_id) == "funds_converted"
    advance(control, 5)
    assert status_of(wise, transfer_id) == "outgoing_payment_sent"
    assert movements(control) == [("moved", 100_000_000, "EUR")]
    assert states_told(control, transfer_id) == [
        "incoming_payment_waiting",
        "processing",
        "funds_converted",
        "outgoing_payment_sent",
    ]


def test_amounts_are_decimals_to_the_last_digit(wise: httpx2.Client) -> None:
    body = prepared(wise, quoteUuid=quote(wise, targetAmount=0.1).json()["id"])
    answer = create(wise, body)
    assert b'"targetValue":0.10,' in answer.content
    assert b'"sourceValue":0.11,' in answer.content


def test_an_unfunded_transfer_is_cancelled_after_14_days(wise: httpx2.Client, control: httpx2.Client) -> None:
    transfer_id = made(wise)
    advance(control, 13 * DAY)
    assert status_of(wise, transfer_id) == "incoming_payment_waiting"
    advance(control, 2 * DAY)
    assert status_of(wise, transfer_id) == "cancelled"
    assert fund(wise, transfer_id).status_code == 409
    assert movements(control) == []


def test_a_sent_transfer_can_bounce_and_be_refunded(wise: httpx2.Client, control: httpx2.Client) -> None:
    control.put("/balances/wise", params={"account": PROFILE}, json={"EUR": 200_000_000}).raise_for_status()
    transfer_id = funded(wise, targetAccount=recipient(wise, iban="CLOSED"))
    advance(control, 10)
    assert status_of(wise, transfer_id) == "outgoing_payment_sent"
    advance(control, 2 * DAY)
    assert status_of(wise, transfer_id) == "bounced_back"
    advance(control, 2 * DAY)
    assert status_of(wise, transfer_id) == "funds_refunded"
    [balance] = wise.get(f"/v4/profiles/{PROFILE}/balances", params={"currency": "EUR"}).json()
    assert balance["amount"] == {"value": 200, "currency": "EUR"}


def test_a_state_can_roll_back_and_go_on(wise: httpx2.Client, control: httpx2.Client) -> None:
    transfer_id = funded(wise)
    advance(control, 10)
    act(control, "roll_back", transfer_id)
    assert status_of(wise, transfer_id) == "processing"
    advance(control, 10)
    assert status_of(wise, transfer_id) == "outgoing_payment_sent"


@pytest.mark.parametrize(("action", "status"), [("charge_back", "charged_back"), ("lose_track", "unknown")])
def test_the_statuses_nobody_has_verified_can_be_reached(
    wise: httpx2.Client, control: httpx2.Client, action: str, status: str
) -> None:
    transfer_id = funded(wise)
    act(control, action, transfer_id)
    assert status_of(wise, transfer_id) == status
    advance(control, 10)
    assert status_of(wise, transfer_id) == status


def test_a_transfer_is_cancelled_before_it_is_converted(wise: httpx2.Client, control: httpx2.Client) -> None:
    control.put("/balances/wise", params={"account": PROFILE}, json={"EUR": 500_000_000}).raise_for_status()
    waiting, processing, sent = made(wise), funded(wise), funded(wise)
    for transfer_id in (waiting, processing):
        answer = wise.put(f"/v1/transfers/{transfer_id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    advance(control, 10)
    refused = wise.put(f"/v1/transfers/{sent}/cancel")
    assert (refused.status_code, code_of(refused)) == (409, "transfer.cancellation.not.allowed")
    assert [status_of(wise, each) for each in (waiting, processing, sent)] == [
        "cancelled",
        "cancelled",
        "outgoing_payment_sent",
    ]
    [balance] = wise.get(f"/v4/profiles/{PROFILE}/balances", params={"currency": "EUR"}).json()
    assert balance["amount"]["value"] == 399.5


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"customerTransactionId": "not-a-uuid"}, "NOT_VALID"),
        ({"customerTransactionId": "{7f1bb6ee-4b7e-4a52-9d6c-0f0f7f6a1111}"}, "NOT_VALID"),
        ({"customerTransactionId": "7f1bb6ee4b7e4a529d6c0f0f7f6a1111"}, "NOT_VALID"),
        ({"quoteUuid": str(uuid4())}, "NOT_VALID"),
        ({"targetAccount": 1}, "NOT_VALID"),
        ({"targetAccount": "1"}, "NOT_VALID"),
    ],
)
def test_a_wrong_transfer_is_refused(wise: httpx2.Client, fields: Any, code: str) -> None:
    answer = create(wise, prepared(wise, **fields))
    assert (answer.status_code, code_of(answer)) == (422, code)


def test_a_recipient_of_another_currency_is_refused(wise: httpx2.Client) -> None:
    assert create(wise, prepared(wise, targetAccount=recipient(wise, currency="GBP"))).status_code == 422


def test_a_quote_is_good_for_one_transfer(wise: httpx2.Client) -> None:
    body = prepared(wise)
    assert create(wise, body).status_code == 200
    again = create(wise, body | {"customerTransactionId": str(uuid4())})
    assert (again.status_code, code_of(again)) == (422, "quote.already.accepted")


@pytest.mark.parametrize(("life", "seconds", "status"), [("1800", 1700, 200), ("1800", 1900, 422), ("60", 61, 422)])
def test_a_quote_lives_as_long_as_the_switch_says(
    wise: httpx2.Client, control: httpx2.Client, *, life: str, seconds: float, status: int
) -> None:
    switch(control, quote_life_seconds=life)
    body = prepared(wise)
    advance(control, seconds)
    assert create(wise, body).status_code == status


def test_uuids_of_other_versions_run_both_ways(wise: httpx2.Client, control: httpx2.Client) -> None:
    hashed = str(UUID(bytes=b"tallystick-hash!", version=5))
    assert create(wise, prepared(wise, key=hashed)).status_code == 200
    switch(control, uuid_versions="v4_only")
    other = str(UUID(bytes=b"tallystick-hash?", version=5))
    assert create(wise, prepared(wise, key=other)).status_code == 422
    assert create(wise, prepared(wise, key=str(uuid4()))).status_code == 200


# -- repeats


def test_a_repeat_is_the_same_transfer(wise: httpx2.Client, control: httpx2.Client) -> None:
    body = prepared(wise)
    first = create(wise, body)
    assert create(wise, body).content == first.content
    upper = body | {"customerTransactionId": body["customerTransactionId"].upper()}
    assert create(wise, upper).json()["id"] == first.json()["id"]
    assert fund(wise, first.json()["id"]).status_code == 201
    assert create(wise, body).json()["status"] == "processing"
    switch(control, repeat_body="first")
    assert create(wise, body).json()["status"] == "incoming_payment_waiting"
    assert len(movements(control)) == 1


@pytest.mark.parametrize(("how", "status"), [("first_transfer", 200), ("error_422", 422), ("error_409", 409)])
def test_a_repeat_with_other_data_is_never_a_second_transfer(
    wise: httpx2.Client, control: httpx2.Client, how: str, status: int
) -> None:
    switch(control, other_data=how)
    body = prepared(wise)
    first = create(wise, body)
    other = create(wise, prepared(wise, key=body["customerTransactionId"]))
    assert other.status_code == status
    if status == 200:
        assert other.json()["id"] == first.json()["id"]
    assert len(wise.get("/v1/transfers", params={"profile": PROFILE}).json()) == 1


@pytest.mark.parametrize(("kept", "status"), [("for_ever", 200), ("30_days", 422)])
def test_a_repeat_is_known_as_long_as_the_switch_says(
    wise: httpx2.Client, control: httpx2.Client, kept: str, status: int
) -> None:
    """Once the id is forgotten, the quote is the last guard: it was used."""
    switch(control, retention=kept)
    body = prepared(wise)
    create(wise, body)
    advance(control, 31 * DAY)
    assert create(wise, body).status_code == status
    fresh = body | {"quoteUuid": quote(wise).json()["id"]}
    create(wise, fresh)
    count = {"for_ever": 1, "30_days": 2}[kept]
    assert len(wise.get("/v1/transfers", params={"profile": PROFILE}).json()) == count


@pytest.mark.parametrize(("how", "status"), [("conflict_409", 409), ("error_500", 500)])
def test_a_twin_meanwhile_is_told_what_the_switch_says(
    wise: httpx2.Client, control: httpx2.Client, how: str, status: int
) -> None:
    switch(control, in_flight=how)
    body = prepared(wise)
    plan(control, "wise.transfer:slow_before(1)")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(create, wise, body)
        while not control.get("/faults").json()["struck"]:
            assert not first.done()
        assert create(wise, body).status_code == status
        answer = first.result()
    assert create(wise, body).content == answer.content


def test_a_failure_is_forgotten_or_kept(wise: httpx2.Client, control: httpx2.Client) -> None:
    body = prepared(wise)
    plan(control, "wise.transfer:error_500_no_object")
    assert create(wise, body).status_code == 500
    assert create(wise, body).status_code == 200
    switch(control, stored_failures="every_answer")
    kept = prepared(wise)
    plan(control, "wise.transfer:error_500_no_object")
    assert [create(wise, kept).status_code for _ in range(2)] == [500, 500]


def test_a_lost_answer_is_overcome_by_the_same_id(wise: httpx2.Client, control: httpx2.Client) -> None:
    body = prepared(wise)
    plan(control, "wise.transfer:execute_then_500, wise.transfer:execute_then_drop@2")
    assert create(wise, body).status_code == 500
    with pytest.raises(httpx2.TransportError):
        create(wise, body)
    assert create(wise, body).status_code == 200
    assert len(wise.get("/v1/transfers", params={"profile": PROFILE}).json()) == 1


# -- funding


def test_a_second_funding_is_a_conflict_in_plain_text(wise: httpx2.Client, control: httpx2.Client) -> None:
    transfer_id = funded(wise)
    again = fund(wise, transfer_id)
    assert (again.status_code, again.text) == (409, "PaymentAlreadyExists")
    assert again.headers["content-type"].startswith("text/plain")
    switch(control, second_funding="rejected_201")
    rejected = fund(wise, transfer_id)
    assert (rejected.status_code, rejected.json()["status"], rejected.json()["errorCode"]) == (
        201,
        "REJECTED",
        "payment.exists",
    )
    assert len(movements(control)) == 1


def test_funding_without_funds_is_a_201_that_is_rejected(wise: httpx2.Client, control: httpx2.Client) -> None:
    control.put("/balances/wise", params={"account": PROFILE}, json={"EUR": 100_490_000}).raise_for_status()
    transfer_id = made(wise)
    rejected = fund(wise, transfer_id)
    assert (rejected.status_code, rejected.json()["status"]) == (201, "REJECTED")
    assert rejected.json()["errorCode"] == "balance.insufficient-funds"
    assert status_of(wise, transfer_id) == "incoming_payment_waiting"
    assert movements(control) == []
    control.put("/balances/wise", params={"account": PROFILE}, json={"EUR": 100_500_000}).raise_for_status()
    assert fund(wise, transfer_id).json()["status"] == "COMPLETED"
    payments = wise.get(f"/v1/transfers/{transfer_id}/payments").json()
    assert [row["status"] for row in payments] == ["REJECTED", "COMPLETED"]
    assert wise.get(f"/v3/profiles/{PROFILE}/transfers/{transfer_id}/payments").json() == payments
    [balance] = wise.get(f"/v4/profiles/{PROFILE}/balances", params={"currency": "EUR"}).json()
    assert balance["amount"]["value"] == 0


def test_funding_errors_are_plain_text(wise: httpx2.Client) -> None:
    transfer_id = made(wise)
    path = f"/v3/profiles/{PROFILE}/transfers/{transfer_id}/payments"
    answers = [fund(wise, 999), fund(wise, transfer_id, profile=101), wise.post(path, json={"type": "CARD"})]
    assert [answer.status_code for answer in answers] == [404, 404, 400]
    assert all(answer.headers["content-type"].startswith("text/plain") for answer in answers)


def test_funding_may_be_challenged(wise: httpx2.Client, control: httpx2.Client) -> None:
    transfer_id = made(wise)
    switch(control, funding_challenge="always")
    answer = fund(wise, transfer_id)
    assert (answer.status_code, answer.headers["x-2fa-approval-result"]) == (403, "REJECTED")
    assert status_of(wise, transfer_id) == "incoming_payment_waiting"


def test_a_rejected_funding_by_plan_moves_nothing(wise: httpx2.Client, control: httpx2.Client) -> None:
    transfer_id = made(wise)
    plan(control, "wise.fund:fund_rejected")
    answer = fund(wise, transfer_id)
    assert (answer.status_code, answer.json()["status"], answer.json()["errorCode"]) == (
        201,
        "REJECTED",
        "balance.insufficient-funds",
    )
    assert movements(control) == []
    assert fund(wise, transfer_id).json()["status"] == "COMPLETED"


def test_a_lost_answer_to_funding_is_asked_for(wise: httpx2.Client, control: httpx2.Client) -> None:
    transfer_id = made(wise)
    plan(control, "wise.fund:execute_then_drop")
    with pytest.raises(httpx2.TransportError):
        fund(wise, transfer_id)
    assert [row["status"] for row in wise.get(f"/v1/transfers/{transfer_id}/payments").json()] == ["COMPLETED"]
    assert fund(wise, transfer_id).status_code == 409


def test_a_transfer_bounces_by_plan(wise: httpx2.Client, control: httpx2.Client) -> None:
    plan(control, "wise.transfer:bounced")
    transfer_id = funded(wise)
    advance(control, 3 * DAY + 60)
    assert status_of(wise, transfer_id) == "bounced_back"


# -- lists and statements


def test_transfers_are_listed_by_profile_time_status_and_currency(wise: httpx2.Client, control: httpx2.Client) -> None:
    first = funded(wise)
    advance(control, 60)
    between = control.get("/clock").json()["now"]
    second = made(wise)

    def ids(**params: Any) -> list[int]:
        return [row["id"] for row in wise.get("/v1/transfers", params={"profile": PROFILE, **params}).json()]

    assert ids() == [second, first]
    assert ids(status="outgoing_payment_sent") == [first]
    assert ids(status="outgoing_payment_sent,incoming_payment_waiting") == [second, first]
    assert ids(createdDateStart=between) == [second]
    assert ids(createdDateEnd=between) == [first]
    assert ids(targetCurrency="GBP") == []
    assert ids(limit=1) == [second]
    assert ids(limit=1, offset=1) == [first]
    assert wise.get("/v1/transfers").json() == []
    assert wise.get("/v1/transfers", params={"createdDateStart": "yesterday"}).status_code == 400


def test_the_statement_shows_what_was_taken_and_given_back(wise: httpx2.Client) -> None:
    transfer_id = funded(wise)
    wise.put(f"/v1/transfers/{transfer_id}/cancel").raise_for_status()
    [balance] = wise.get(f"/v4/profiles/{PROFILE}/balances", params={"currency": "EUR"}).json()
    path = f"/v1/profiles/{PROFILE}/balance-statements/{balance['id']}/statement.json"
    asked = {"intervalStart": "2000-01-01T00:00:00.000Z", "intervalEnd": "2200-01-01T00:00:00.000Z", "type": "COMPACT"}
    lines = wise.get(path, params=asked).json()["transactions"]
    assert [(line["type"], line["amount"]["value"], line["referenceNumber"]) for line in lines] == [
        ("DEBIT", -100.5, f"TRANSFER-{transfer_id}"),
        ("CREDIT", 100.5, f"TRANSFER-{transfer_id}"),
    ]
    assert wise.get(path).status_code == 422
    other = f"/v1/profiles/{PROFILE}/balance-statements/1/statement.json"
    assert wise.get(other, params=asked).status_code == 404


# -- trouble


def test_a_limited_call_is_told_when_to_come_back(wise: httpx2.Client, control: httpx2.Client) -> None:
    plan(control, "wise.quote:rate_limited")
    answer = quote(wise)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-rate-limited-by"]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_gateway_in_front_of_funding_speaks_plain_text(
    wise: httpx2.Client, control: httpx2.Client, status: int
) -> None:
    transfer_id = made(wise)
    plan(control, f"wise.fund:gateway_{status}")
    answer = fund(wise, transfer_id)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/plain")
    assert movements(control) == []


def test_the_correlation_id_comes_back(wise: httpx2.Client) -> None:
    answer = wise.get("/v1/profiles", headers={"X-External-Correlation-Id": "abc"})
    assert answer.headers["x-external-correlation-id"] == "abc"


def test_a_missing_token_is_401_and_a_wrong_path_404(wise: httpx2.Client, simulator: Station) -> None:
    assert httpx2.get(f"{simulator.url}/wise/v1/profiles").status_code == 401
    assert wise.get("/v1/nothing").status_code == 404
    assert wise.delete("/v1/transfers").status_code == 405
