"""The official Adyen package, unmodified but for its base addresses, against the simulator."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import Adyen
import httpx2
import pytest
from Adyen.exceptions import (
    AdyenAPIAuthenticationError,
    AdyenAPICommunicationError,
    AdyenAPIResponseError,
    AdyenAPIUnprocessableEntity,
)

from tests.simulator.station import DAY, Station


@pytest.fixture
def control(simulator: Station) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{simulator.url}/_sim", timeout=30) as client:
        yield client


@pytest.fixture
def adyen(simulator: Station, control: httpx2.Client) -> Any:
    official = Adyen.Adyen()
    official.client.xapikey = "any"
    official.client.platform = "test"
    official.checkout.payments_api.baseUrl = f"{simulator.url}/adyen/checkout/v72"
    official.checkout.modifications_api.baseUrl = f"{simulator.url}/adyen/checkout/v72"
    official.transfers.transfers_api.baseUrl = f"{simulator.url}/adyen/btl/v4"
    official.transfers.transactions_api.baseUrl = f"{simulator.url}/adyen/btl/v4"
    return official


def payment_of(value: int = 1000, method: str = "card", reference: str = "order-1") -> dict[str, Any]:
    return {
        "amount": {"currency": "EUR", "value": value},
        "merchantAccount": "TestMerchant",
        "reference": reference,
        "paymentMethod": {"type": "scheme", "storedPaymentMethodId": method},
    }


def transfer_of(instrument: str = "SE_good", reference: str = "payout-1", value: int = 1000) -> dict[str, Any]:
    return {
        "amount": {"currency": "EUR", "value": value},
        "balanceAccountId": "BA1",
        "category": "bank",
        "counterparty": {"transferInstrumentId": instrument},
        "priority": "regular",
        "reference": reference,
    }


def pay(adyen: Any, key: str | None = None, **fields: Any) -> Any:
    return adyen.checkout.payments_api.payments(payment_of(**fields), idempotency_key=key)


def refund(adyen: Any, psp: str, value: int, key: str | None = None) -> Any:
    asked = {"amount": {"currency": "EUR", "value": value}, "merchantAccount": "TestMerchant", "reference": "refund-1"}
    return adyen.checkout.modifications_api.refund_captured_payment(asked, psp, idempotency_key=key)


def send(adyen: Any, key: str | None = None, **fields: Any) -> Any:
    return adyen.transfers.transfers_api.transfer_funds(transfer_of(**fields), idempotency_key=key)


def status_of(adyen: Any, transfer_id: str) -> tuple[str, str, int]:
    shown = adyen.transfers.transfers_api.get_transfer(transfer_id).message
    return shown["status"], shown["reason"], shown["sequenceNumber"]


def window(adyen: Any, **more: Any) -> dict[str, Any]:
    """The last two months on the simulator's clock, which tests before this one have put forward."""
    base = adyen.transfers.transfers_api.baseUrl.removesuffix("/adyen/btl/v4")
    now = datetime.fromisoformat(httpx2.get(f"{base}/_sim/clock").json()["now"])
    since, until = now - timedelta(days=60), now + timedelta(days=1)
    return {"createdSince": since.isoformat(), "createdUntil": until.isoformat(), "balanceAccountId": "BA1", **more}


def listed(adyen: Any, **more: Any) -> Any:
    return adyen.transfers.transfers_api.get_all_transfers(query_parameters=window(adyen, **more)).message


def advance(control: httpx2.Client, seconds: float) -> None:
    control.post("/clock", json={"advance_seconds": seconds}).raise_for_status()


def switch(control: httpx2.Client, **values: str) -> None:
    named = {f"adyen.{name}": value for name, value in values.items()}
    control.put("/switches", json=named).raise_for_status()


def plan(control: httpx2.Client, text: str) -> None:
    control.post("/faults", json={"plan": text}).raise_for_status()


def act(control: httpx2.Client, action: str, object_id: str) -> None:
    control.post("/act", json={"dialect": "adyen", "action": action, "id": object_id}).raise_for_status()


def movements(control: httpx2.Client) -> list[tuple[str, str, int]]:
    rows = control.get("/movements", params={"dialect": "adyen"}).json()
    return [(row["kind"], row["state"], row["amount"]) for row in rows]


def announced(control: httpx2.Client, object_id: str) -> list[Any]:
    rows = control.get("/events", params={"dialect": "adyen", "object_id": object_id}).json()
    return [row["body"] for row in reversed(rows)]


def item_of(body: Any) -> tuple[str, str]:
    item = body["notificationItems"][-1]["NotificationRequestItem"]
    return item["eventCode"], item["success"]


# -- payments


@pytest.mark.parametrize(
    ("method", "result", "state"),
    [
        ("card", "Authorised", "moved"),
        ("card_refused", "Refused", "failed"),
        ("card_not_enough", "Refused", "failed"),
        ("card_cancelled", "Cancelled", "failed"),
        ("card_acquirer_error", "Error", "failed"),
        ("card_pending", "Pending", "waiting"),
        ("card_received", "Received", "waiting"),
        ("card_redirect", "RedirectShopper", "waiting"),
    ],
)
def test_the_payment_method_chooses_the_result(
    adyen: Any, control: httpx2.Client, method: str, result: str, state: str
) -> None:
    paid = pay(adyen, method=method)
    assert (paid.status_code, paid.message["resultCode"]) == (200, result)
    kept = control.get("/objects", params={"dialect": "adyen", "kind": "charge", "reference": "order-1"}).json()
    assert [(row["id"], row["state"]) for row in kept] == [(paid.psp, state)]


def test_a_pending_payment_is_decided_by_webhook_only(adyen: Any, control: httpx2.Client) -> None:
    paid = pay(adyen, method="pending")
    assert announced(control, paid.psp) == []
    act(control, "succeed", paid.psp)
    assert [item_of(body) for body in announced(control, paid.psp)] == [("AUTHORISATION", "true")]
    act(control, "fail", paid.psp)
    assert len(announced(control, paid.psp)) == 1
    refused = pay(adyen, method="pending")
    act(control, "fail", refused.psp)
    assert [item_of(body) for body in announced(control, refused.psp)] == [("AUTHORISATION", "false")]


def test_a_payment_cannot_be_asked_for(adyen: Any, simulator: Station) -> None:
    paid = pay(adyen)
    answer = httpx2.get(f"{simulator.url}/adyen/checkout/v72/payments/{paid.psp}", headers={"x-api-key": "any"})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "broken",
    [
        {"amount": {"currency": "EUR", "value": 0}},
        {"amount": {"currency": "XXX", "value": 100}},
        {"amount": {"currency": "EUR", "value": "100"}},
        {"amount": {"currency": "EUR", "value": 1.5}},
        {"reference": ""},
        {"reference": "r" * 81},
        {"merchantAccount": ""},
        {"paymentMethod": None},
    ],
)
def test_a_wrong_payment_is_refused_with_the_envelope(adyen: Any, control: httpx2.Client, broken: Any) -> None:
    with pytest.raises(AdyenAPIUnprocessableEntity) as caught:
        adyen.checkout.payments_api.payments(payment_of() | broken)
    assert caught.value.status_code == 422
    assert caught.value.message["errorType"] == "validation"
    assert caught.value.headers.get("transient-error") is None
    assert movements(control) == []


# -- refunds


def test_a_refund_is_received_and_then_told(adyen: Any, control: httpx2.Client) -> None:
    psp = pay(adyen).psp
    received = refund(adyen, psp, 400)
    assert (received.status_code, received.message["status"]) == (201, "received")
    assert received.message["paymentPspReference"] == psp
    assert received.psp != psp
    assert announced(control, received.psp) == []
    advance(control, 10)
    assert [item_of(body) for body in announced(control, received.psp)] == [("REFUND", "true")]
    act(control, "fail", received.psp)
    assert item_of(announced(control, received.psp)[-1]) == ("REFUND_FAILED", "true")
    assert movements(control) == [("charge", "moved", 1000), ("refund", "returned", 400)]


def test_a_refund_can_come_back(adyen: Any, control: httpx2.Client) -> None:
    received = refund(adyen, pay(adyen).psp, 400)
    advance(control, 10)
    act(control, "return", received.psp)
    assert item_of(announced(control, received.psp)[-1]) == ("REFUNDED_REVERSED", "true")
    assert ("refund", "returned", 400) in movements(control)


def test_refunds_never_exceed_what_was_captured(adyen: Any, control: httpx2.Client) -> None:
    psp = pay(adyen).psp
    first, second, third = refund(adyen, psp, 700), refund(adyen, psp, 301), refund(adyen, psp, 300)
    assert [each.status_code for each in (first, second, third)] == [201, 201, 201]
    advance(control, 10)
    told = [item_of(announced(control, each.psp)[-1]) for each in (first, second, third)]
    assert told == [("REFUND", "true"), ("REFUND", "false"), ("REFUND", "true")]
    switch(control, over_refund="http_422")
    with pytest.raises(AdyenAPIUnprocessableEntity):
        refund(adyen, psp, 1)


def test_what_was_not_captured_cannot_be_refunded(adyen: Any) -> None:
    for psp in (pay(adyen, method="refused").psp, "PSP_UNKNOWN"):
        with pytest.raises(AdyenAPIUnprocessableEntity) as caught:
            refund(adyen, psp, 100)
        assert caught.value.error_code == "167"


# -- transfers


def test_a_transfer_is_received_then_authorised_then_booked(adyen: Any, control: httpx2.Client) -> None:
    sent = send(adyen)
    assert (sent.status_code, sent.message["status"], sent.message["sequenceNumber"]) == (202, "received", 1)
    transfer_id = sent.message["id"]
    assert movements(control) == []
    advance(control, 2.5)
    assert status_of(adyen, transfer_id) == ("authorised", "approved", 2)
    advance(control, 5)
    assert status_of(adyen, transfer_id) == ("booked", "approved", 3)
    assert movements(control) == [("transfer", "moved", 1000)]
    told = [
        (body["type"], body["data"]["status"], body["data"]["sequenceNumber"])
        for body in announced(control, transfer_id)
    ]
    assert told == [
        ("balancePlatform.transfer.created", "received", 1),
        ("balancePlatform.transfer.updated", "authorised", 2),
        ("balancePlatform.transfer.updated", "booked", 3),
    ]
    booked = adyen.transfers.transactions_api.get_all_transactions(query_parameters=window(adyen)).message["data"]
    assert [(row["transfer"]["id"], row["amount"]["value"]) for row in booked] == [(transfer_id, -1000)]
    one = adyen.transfers.transactions_api.get_transaction(booked[0]["id"]).message
    assert one == booked[0]


def test_both_success_statuses_occur(adyen: Any, control: httpx2.Client) -> None:
    switch(control, transfer_status="200")
    assert send(adyen).status_code == 200


@pytest.mark.parametrize(
    ("instrument", "seconds", "status", "reason"),
    [
        ("SE_closed", 10, "refused", "counterpartyAccountClosed"),
        ("SE_unknown", 10, "refused", "counterpartyAccountNotFound"),
        ("SE_poor", 10, "refused", "notEnoughBalance"),
        ("SE_limit", 10, "refused", "amountLimitExceeded"),
        ("SE_timeout", 10, "failed", "counterpartyBankTimedOut"),
        ("SE_bounce", 4 * DAY, "returned", "counterpartyAccountClosed"),
        ("SE_late_failure", 4 * DAY, "failed", "counterpartyBankUnavailable"),
    ],
)
def test_the_counterparty_chooses_how_it_ends(
    adyen: Any, control: httpx2.Client, *, instrument: str, seconds: float, status: str, reason: str
) -> None:
    sent = send(adyen, instrument=instrument)
    assert (sent.status_code, sent.message["status"]) == (202, "received")
    advance(control, 10)
    if seconds > 10:
        assert status_of(adyen, sent.message["id"])[0] == "booked"
    advance(control, seconds)
    assert status_of(adyen, sent.message["id"])[:2] == (status, reason)


def test_an_empty_balance_refuses_and_a_return_fills_it(adyen: Any, control: httpx2.Client) -> None:
    control.put("/balances/adyen", params={"account": "BA1"}, json={"EUR": 1500}).raise_for_status()
    first, second = send(adyen, reference="a"), send(adyen, reference="b")
    advance(control, 10)
    assert status_of(adyen, first.message["id"])[:2] == ("booked", "approved")
    assert status_of(adyen, second.message["id"])[:2] == ("refused", "notEnoughBalance")
    act(control, "return", first.message["id"])
    third = send(adyen, reference="c")
    advance(control, 10)
    assert status_of(adyen, third.message["id"])[:2] == ("booked", "approved")


def test_a_transfer_is_cancelled_until_it_is_authorised(adyen: Any, control: httpx2.Client) -> None:
    api = adyen.transfers.transfers_api
    early, late = send(adyen, reference="a").message["id"], send(adyen, reference="b").message["id"]
    assert api.cancel_initiated_transfers({"transferIds": [early]}).status_code == 202
    advance(control, 10)
    assert status_of(adyen, early)[0] == "cancelled"
    assert status_of(adyen, late)[0] == "booked"
    with pytest.raises(AdyenAPIUnprocessableEntity):
        api.cancel_initiated_transfers({"transferIds": [late]})


def test_a_transfer_under_review_waits_for_its_approval(adyen: Any, control: httpx2.Client) -> None:
    api = adyen.transfers.transfers_api
    asked = transfer_of() | {"review": {"numberOfApprovalsRequired": 1}}
    transfer_id = api.transfer_funds(asked).message["id"]
    advance(control, 10)
    assert status_of(adyen, transfer_id)[0] == "approvalPending"
    assert api.approve_initiated_transfers({"transferIds": [transfer_id]}).status_code == 202
    advance(control, 10)
    assert status_of(adyen, transfer_id)[0] == "booked"


def test_a_transfer_for_another_day_waits_for_it(adyen: Any, control: httpx2.Client) -> None:
    now = datetime.fromisoformat(control.get("/clock").json()["now"])
    asked = transfer_of() | {"executionDate": {"date": (now + timedelta(days=3)).date().isoformat()}}
    transfer_id = adyen.transfers.transfers_api.transfer_funds(asked).message["id"]
    advance(control, DAY)
    assert status_of(adyen, transfer_id)[0] == "pendingExecution"
    advance(control, 2 * DAY + 10)
    assert status_of(adyen, transfer_id)[0] == "booked"


def test_a_transfer_is_given_back_in_parts_and_never_twice(adyen: Any, control: httpx2.Client) -> None:
    api = adyen.transfers.transfers_api
    transfer_id = send(adyen).message["id"]
    part = {"amount": {"currency": "EUR", "value": 600}, "reference": "back"}
    assert api.return_transfer(part, transfer_id).message["status"] == "Declined"
    advance(control, 10)
    assert api.return_transfer(part, transfer_id).message["status"] == "Authorised"
    assert api.return_transfer(part, transfer_id).message["status"] == "Declined"
    rest = {"amount": {"currency": "EUR", "value": 400}, "reference": "rest"}
    assert api.return_transfer(rest, transfer_id).message["status"] == "Authorised"
    assert status_of(adyen, transfer_id)[0] == "returned"


@pytest.mark.parametrize(
    "broken",
    [
        {"amount": {"currency": "EUR", "value": -1}},
        {"category": "pigeon"},
        {"counterparty": {}},
        {"priority": None},
        {"reference": "r" * 81},
        {"description": "d" * 141},
        {"executionDate": {"date": "2199-01-01"}},
    ],
)
def test_a_wrong_transfer_is_refused_at_once(adyen: Any, control: httpx2.Client, broken: Any) -> None:
    with pytest.raises(AdyenAPIUnprocessableEntity) as caught:
        adyen.transfers.transfers_api.transfer_funds(transfer_of() | broken)
    assert caught.value.message["status"] == 422
    assert caught.value.error_code
    advance(control, 10)
    assert movements(control) == []


# -- looking up


def test_transfers_are_found_by_reference_and_there_may_be_several(adyen: Any, control: httpx2.Client) -> None:
    ids = {send(adyen, reference="same").message["id"] for _ in range(2)}
    send(adyen, reference="other")
    assert {row["id"] for row in listed(adyen, reference="same")["data"]} == ids
    assert listed(adyen, reference="absent")["data"] == []
    assert listed(adyen, reference="same", balanceAccountId="BA2")["data"] == []
    switch(control, reference="unique")
    with pytest.raises(AdyenAPIUnprocessableEntity):
        send(adyen, reference="same")


def test_pages_hold_every_transfer_once(adyen: Any) -> None:
    ids = [send(adyen, reference=f"r{number}").message["id"] for number in range(5)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(3):
        page = listed(adyen, limit=2, sortOrder="asc", **cursor)
        seen += [row["id"] for row in page["data"]]
        following = page["_links"].get("next")
        if following is None:
            break
        cursor = {"cursor": httpx2.URL(following["href"]).params["cursor"]}
    assert seen == ids
    assert [row["id"] for row in listed(adyen, limit=100)["data"]] == ids[::-1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"createdSince": ""},
        {"createdUntil": "yesterday"},
        {"createdSince": "2026-01-01T00:00:00Z", "createdUntil": "2026-12-31T00:00:00Z"},
        {"createdSince": "2026-02-01T00:00:00Z", "createdUntil": "2026-01-01T00:00:00Z"},
        {"limit": 101},
        {"cursor": "nonsense"},
    ],
)
def test_a_look_up_needs_its_dates_and_bounds(adyen: Any, wrong: Any) -> None:
    with pytest.raises(AdyenAPIUnprocessableEntity):
        listed(adyen, **wrong)


def test_a_look_up_must_name_whose_transfers(adyen: Any) -> None:
    asked = window(adyen)
    del asked["balanceAccountId"]
    with pytest.raises(AdyenAPIUnprocessableEntity):
        adyen.transfers.transfers_api.get_all_transfers(query_parameters=asked)
    with pytest.raises(AdyenAPICommunicationError):
        adyen.transfers.transfers_api.get_transfer("3J_UNKNOWN")


# -- keys


def test_a_repeat_under_the_same_key_is_the_first_answer(
    adyen: Any, control: httpx2.Client, simulator: Station
) -> None:
    first, again = send(adyen, key="key-1"), send(adyen, key="key-1")
    assert first.message == again.message
    assert send(adyen, key="key-2").message["id"] != first.message["id"]
    headers = {"x-api-key": "any", "idempotency-key": "key-1"}
    raw = httpx2.post(f"{simulator.url}/adyen/btl/v4/transfers", headers=headers, json=transfer_of())
    assert raw.headers["idempotency-key"] == "key-1"
    advance(control, 10)
    assert movements(control) == [("transfer", "moved", 1000)] * 2


def test_without_a_key_every_request_is_a_new_payment(adyen: Any) -> None:
    assert pay(adyen).psp != pay(adyen).psp


def test_a_key_of_65_characters_is_refused(adyen: Any) -> None:
    assert pay(adyen, key="k" * 64).status_code == 200
    with pytest.raises(AdyenAPIUnprocessableEntity):
        pay(adyen, key="k" * 65)


@pytest.mark.parametrize(("how", "code"), [("error_704", "704"), ("error_422", "702")])
def test_another_body_under_the_key_may_be_an_error(adyen: Any, control: httpx2.Client, how: str, code: str) -> None:
    switch(control, other_body=how)
    pay(adyen, key="key-1")
    with pytest.raises(AdyenAPIUnprocessableEntity) as caught:
        pay(adyen, key="key-1", value=2000)
    assert caught.value.error_code == code
    assert movements(control) == [("charge", "moved", 1000)]


def test_another_body_under_the_key_may_be_given_the_first_answer(adyen: Any, control: httpx2.Client) -> None:
    assert pay(adyen, key="key-1").message == pay(adyen, key="key-1", value=2000).message
    assert movements(control) == [("charge", "moved", 1000)]


def test_the_key_is_forgotten_after_seven_days_and_pays_again(adyen: Any, control: httpx2.Client) -> None:
    first = pay(adyen, key="key-1")
    advance(control, 7 * DAY - 60)
    assert pay(adyen, key="key-1").psp == first.psp
    advance(control, 120)
    assert pay(adyen, key="key-1").psp != first.psp
    assert movements(control) == [("charge", "moved", 1000)] * 2


def test_refusals_are_stored_under_the_key_or_not(adyen: Any, control: httpx2.Client) -> None:
    broken = transfer_of() | {"priority": None}
    with pytest.raises(AdyenAPIUnprocessableEntity):
        adyen.transfers.transfers_api.transfer_funds(broken, idempotency_key="key-1")
    with pytest.raises(AdyenAPIUnprocessableEntity):
        send(adyen, key="key-1")
    switch(control, stored_failures="success_only")
    with pytest.raises(AdyenAPIUnprocessableEntity):
        adyen.transfers.transfers_api.transfer_funds(broken, idempotency_key="key-2")
    assert send(adyen, key="key-2").status_code == 202


@pytest.mark.parametrize(("status", "error"), [("422", AdyenAPIUnprocessableEntity), ("409", AdyenAPIResponseError)])
def test_a_twin_meanwhile_is_told_704(
    adyen: Any, control: httpx2.Client, status: str, error: type[AdyenAPIResponseError]
) -> None:
    switch(control, in_flight_status=status)
    plan(control, "adyen.charge:slow_before(1)")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(pay, adyen, key="key-1")
        caught = None
        while caught is None and not first.done():
            # The first of the two to arrive is the slow one; until it has, nothing is in flight.
            if control.get("/faults").json()["struck"]:
                with pytest.raises(error) as caught:
                    pay(adyen, key="key-1")
        answer = first.result()
    assert caught is not None
    assert (caught.value.status_code, caught.value.error_code) == (int(status), "704")
    assert caught.value.headers["transient-error"] == "true"
    assert pay(adyen, key="key-1").message == answer.message
    assert movements(control) == [("charge", "moved", 1000)]


# -- faults


@pytest.mark.parametrize(
    ("fault", "error", "status", "code", "transient"),
    [
        ("error_703", AdyenAPIResponseError, 503, "703", "true"),
        ("error_704", AdyenAPIUnprocessableEntity, 422, "704", "true"),
        ("rate_limited", AdyenAPIResponseError, 429, "429", "true"),
        ("unauthorized", AdyenAPIAuthenticationError, 401, "000", None),
        ("gateway_503", AdyenAPIResponseError, 503, "000", None),
    ],
)
def test_trouble_before_the_keys_leaves_the_key_unused(
    adyen: Any,
    control: httpx2.Client,
    *,
    fault: str,
    error: type[AdyenAPIResponseError],
    status: int,
    code: str,
    transient: str | None,
) -> None:
    plan(control, f"adyen.transfer:{fault}")
    with pytest.raises(error) as caught:
        send(adyen, key="key-1")
    assert (caught.value.status_code, caught.value.error_code) == (status, code)
    assert caught.value.headers.get("transient-error") == transient
    assert control.get("/books").json()["keys"] == {}
    assert send(adyen, key="key-1").status_code == 202


def test_an_error_without_transient_is_stored(adyen: Any, control: httpx2.Client) -> None:
    plan(control, "adyen.transfer:error_without_transient")
    for _ in range(2):
        with pytest.raises(AdyenAPICommunicationError) as caught:
            send(adyen, key="key-1")
        assert caught.value.status_code == 500
        assert caught.value.headers.get("transient-error") is None
    advance(control, 10)
    assert movements(control) == []


def test_a_500_may_hide_a_transfer_that_the_look_up_finds(adyen: Any, control: httpx2.Client) -> None:
    plan(control, "adyen.transfer:execute_then_500")
    for _ in range(2):
        with pytest.raises(AdyenAPICommunicationError):
            send(adyen, key="key-1")
    assert [row["reference"] for row in listed(adyen, reference="payout-1")["data"]] == ["payout-1"]


def test_the_packages_empty_dict_is_a_transfer_that_was_made(adyen: Any, control: httpx2.Client) -> None:
    plan(control, "adyen.transfer:html_200")
    answer = send(adyen, key="key-1")
    assert (answer.status_code, answer.message) == (200, {})
    assert len(listed(adyen, reference="payout-1")["data"]) == 1


def test_an_accepted_transfer_can_be_refused_by_webhook(adyen: Any, control: httpx2.Client) -> None:
    plan(control, "adyen.transfer:accepted_then_refused")
    sent = send(adyen)
    assert (sent.status_code, sent.message["status"]) == (202, "received")
    advance(control, DAY)
    assert status_of(adyen, sent.message["id"])[0] in {"refused", "failed"}
    assert movements(control) == []


def test_a_refused_charge_is_a_200_that_says_so(adyen: Any, control: httpx2.Client) -> None:
    plan(control, "adyen.charge:refused(FRAUD)")
    answer = pay(adyen)
    assert (answer.status_code, answer.message["resultCode"], answer.message["refusalReason"]) == (
        200,
        "Refused",
        "FRAUD",
    )
    assert movements(control) == []


def test_a_missing_api_key_is_401_and_a_wrong_path_404(simulator: Station) -> None:
    assert httpx2.post(f"{simulator.url}/adyen/checkout/v72/payments", json=payment_of()).status_code == 401
    headers = {"x-api-key": "any"}
    assert httpx2.get(f"{simulator.url}/adyen/btl/v4/nothing", headers=headers).status_code == 404
    assert httpx2.delete(f"{simulator.url}/adyen/btl/v4/transfers", headers=headers).status_code == 405
