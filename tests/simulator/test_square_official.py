"""The official Square package, unmodified but for its base address, against the simulator."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest
from square import Square
from square.core.api_error import ApiError

from tests.simulator.station import DAY, Station

# Its own retries are off: what is asked once is sent once.
ONCE: Any = {"max_retries": 0}


@pytest.fixture
def control(simulator: Station) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{simulator.url}/_sim", timeout=30) as client:
        yield client


@pytest.fixture
def square(simulator: Station, control: httpx2.Client) -> Square:
    return Square(token="any", base_url=f"{simulator.url}/square")


def pay(square: Square, key: str, amount: int = 1000, source: str = "cnon:card-nonce-ok", **more: Any) -> Any:
    money: Any = {"amount": amount, "currency": "USD"}
    made = square.payments.create(
        source_id=source, idempotency_key=key, amount_money=money, request_options=ONCE, **more
    )
    return made.payment


def refund(square: Square, payment_id: str, amount: int, key: str, **more: Any) -> Any:
    money: Any = {"amount": amount, "currency": "USD"}
    made = square.refunds.refund_payment(
        idempotency_key=key, amount_money=money, payment_id=payment_id, request_options=ONCE, **more
    )
    return made.refund


def fault_of(caught: pytest.ExceptionInfo[ApiError]) -> tuple[int | None, str, str]:
    error = caught.value.body["errors"][0]
    return caught.value.status_code, error["category"], error["code"]


def advance(control: httpx2.Client, seconds: float) -> None:
    control.post("/clock", json={"advance_seconds": seconds}).raise_for_status()


def switch(control: httpx2.Client, **values: str) -> None:
    named = {f"square.{name}": value for name, value in values.items()}
    control.put("/switches", json=named).raise_for_status()


def plan(control: httpx2.Client, text: str) -> None:
    control.post("/faults", json={"plan": text}).raise_for_status()


def act(control: httpx2.Client, action: str, object_id: str) -> None:
    control.post("/act", json={"dialect": "square", "action": action, "id": object_id}).raise_for_status()


def movements(control: httpx2.Client) -> list[tuple[str, str, int]]:
    rows = control.get("/movements", params={"dialect": "square"}).json()
    return [(row["kind"], row["state"], row["amount"]) for row in rows]


# -- payments


def test_a_payment_is_completed_and_can_be_read(square: Square, control: httpx2.Client) -> None:
    paid = pay(square, "key-1", reference_id="order-1", note="thanks")
    assert (paid.status, paid.reference_id, paid.amount_money.amount) == ("COMPLETED", "order-1", 1000)
    shown = square.payments.get(paid.id).payment
    assert shown is not None
    assert shown.id == paid.id
    assert movements(control) == [("charge", "moved", 1000)]
    with pytest.raises(ApiError) as caught:
        square.payments.get("PAY_UNKNOWN")
    assert fault_of(caught) == (404, "INVALID_REQUEST_ERROR", "NOT_FOUND")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("cnon:card-nonce-declined", "GENERIC_DECLINE"),
        ("cnon:card-nonce-rejected-cvv", "CVV_FAILURE"),
        ("cnon:card-nonce-insufficient-funds", "INSUFFICIENT_FUNDS"),
        ("cnon:card-nonce-already-used", "CARD_TOKEN_USED"),
    ],
)
def test_a_declined_card_is_an_error_with_a_failed_payment(
    square: Square, control: httpx2.Client, source: str, code: str
) -> None:
    with pytest.raises(ApiError) as caught:
        pay(square, "key-1", source=source)
    assert fault_of(caught) == (400, "PAYMENT_METHOD_ERROR", code)
    assert caught.value.body["payment"]["status"] == "FAILED"
    assert movements(control) == []
    assert [payment.status for payment in square.payments.list()] == ["FAILED"]


def test_a_delayed_payment_is_completed_or_cancelled_or_expires(square: Square, control: httpx2.Client) -> None:
    first, second, third = (pay(square, f"key-{number}", autocomplete=False) for number in range(3))
    assert [each.status for each in (first, second, third)] == ["APPROVED"] * 3
    completed = square.payments.complete(first.id, version_token=first.version_token).payment
    cancelled = square.payments.cancel(second.id).payment
    assert completed is not None
    assert cancelled is not None
    assert (completed.status, cancelled.status) == ("COMPLETED", "CANCELED")
    for refused in (first.id, second.id):
        with pytest.raises(ApiError) as caught:
            square.payments.cancel(refused)
        assert fault_of(caught)[0] == 400
    advance(control, 8 * DAY)
    expired = square.payments.get(third.id).payment
    assert expired is not None
    assert expired.status == "CANCELED"


def test_an_old_version_token_is_a_conflict(square: Square) -> None:
    paid = pay(square, "key-1", autocomplete=False)
    with pytest.raises(ApiError) as caught:
        square.payments.complete(paid.id, version_token="old", request_options=ONCE)
    assert fault_of(caught) == (409, "INVALID_REQUEST_ERROR", "CONFLICT")


@pytest.mark.parametrize(
    ("source", "status"),
    [("bnon:bank-nonce-ok", "COMPLETED"), ("bnon:bank-nonce-insufficient-funds", "FAILED")],
)
def test_a_payment_by_bank_is_pending_first(square: Square, control: httpx2.Client, source: str, status: str) -> None:
    paid = pay(square, "key-1", source=source)
    assert paid.status == "PENDING"
    advance(control, 10)
    shown = square.payments.get(paid.id).payment
    assert shown is not None
    assert shown.status == status


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"idempotency_key": "k" * 46}, "VALUE_TOO_LONG"),
        ({"idempotency_key": "é" * 23}, "VALUE_TOO_LONG"),
        ({"idempotency_key": ""}, "VALUE_EMPTY"),
        ({"source_id": None}, "INVALID_VALUE"),
        ({"amount_money": None}, "MISSING_REQUIRED_PARAMETER"),
        ({"amount_money": {"amount": 0, "currency": "USD"}}, "VALUE_TOO_LOW"),
        ({"amount_money": {"amount": 100, "currency": "XXX"}}, "UNSUPPORTED_CURRENCY"),
        ({"amount_money": {"amount": "100", "currency": "USD"}}, "INVALID_VALUE"),
        ({"amount_money": {"amount": 1.5, "currency": "USD"}}, "INVALID_VALUE"),
        ({"reference_id": "r" * 41}, "VALUE_TOO_LONG"),
    ],
)
def test_a_wrong_payment_is_refused_and_nothing_is_kept(
    simulator: Station, control: httpx2.Client, wrong: Any, code: str
) -> None:
    good = {"source_id": "cnon:card-nonce-ok", "idempotency_key": "k" * 45}
    body = good | {"amount_money": {"amount": 100, "currency": "USD"}} | wrong
    headers = {"authorization": "Bearer any"}
    answer = httpx2.post(f"{simulator.url}/square/v2/payments", headers=headers, json=body)
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, code)
    assert control.get("/books").json()["entries"] == []


def test_a_body_that_is_no_json_is_said_to_be_none(simulator: Station) -> None:
    headers = {"authorization": "Bearer any"}
    answer = httpx2.post(f"{simulator.url}/square/v2/payments", headers=headers, content=b"{")
    assert answer.json()["errors"][0]["code"] == "EXPECTED_JSON_BODY"


# -- lists


def test_lists_hold_the_main_location_unless_asked(square: Square) -> None:
    here, there = pay(square, "key-1"), pay(square, "key-2", location_id="LSECOND")
    assert [payment.id for payment in square.payments.list()] == [here.id]
    assert [payment.id for payment in square.payments.list(location_id="LSECOND")] == [there.id]
    assert [location.id for location in square.locations.list().locations or []] == ["LMAIN", "LSECOND"]


def test_pages_hold_every_payment_once(square: Square) -> None:
    ids = [pay(square, f"key-{number}").id for number in range(5)]
    assert [payment.id for payment in square.payments.list(limit=2)] == ids[::-1]
    assert [payment.id for payment in square.payments.list(limit=2, sort_order="ASC")] == ids


def test_a_list_is_bounded_by_its_times(square: Square, control: httpx2.Client) -> None:
    first = pay(square, "key-1")
    advance(control, 60)
    second = pay(square, "key-2")
    assert [payment.id for payment in square.payments.list(begin_time=second.created_at)] == [second.id]
    assert [payment.id for payment in square.payments.list(end_time=first.created_at)] == [first.id]
    advance(control, 366 * DAY)
    assert list(square.payments.list()) == []
    for wrong in ({"begin_time": "yesterday"}, {"sort_order": "UP"}, {"cursor": "nonsense"}):
        with pytest.raises(ApiError) as caught:
            square.payments.list(**wrong)
        assert fault_of(caught)[:2] == (400, "INVALID_REQUEST_ERROR")


def test_a_new_payment_may_not_be_listed_yet(square: Square, control: httpx2.Client) -> None:
    switch(control, list_delay="5_seconds")
    paid = pay(square, "key-1")
    assert list(square.payments.list()) == []
    advance(control, 6)
    assert [payment.id for payment in square.payments.list()] == [paid.id]


# -- cancel by key


def test_cancelling_by_key_voids_the_payment_or_finds_nothing(square: Square, control: httpx2.Client) -> None:
    paid = pay(square, "key-1")
    square.payments.cancel_by_idempotency_key(idempotency_key="key-1")
    shown = square.payments.get(paid.id).payment
    assert shown is not None
    assert shown.status == "CANCELED"
    assert square.payments.cancel_by_idempotency_key(idempotency_key="never-used").errors is None
    assert movements(control) == []


def test_a_late_create_is_not_stopped_by_the_cancel(square: Square, control: httpx2.Client) -> None:
    plan(control, "square.charge:late_create(1)")
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(pay, square, "key-1")
        while not control.get("/faults").json()["struck"]:
            assert not late.done()
        assert square.payments.cancel_by_idempotency_key(idempotency_key="key-1").errors is None
        assert not late.done()
        paid = late.result()
    assert paid.status == "COMPLETED"
    assert movements(control) == [("charge", "moved", 1000)]


# -- refunds


def test_a_refund_is_pending_then_completed(square: Square, control: httpx2.Client) -> None:
    paid = pay(square, "key-1")
    back = refund(square, paid.id, 400, "key-2", reason="late")
    assert back.status == "PENDING"
    advance(control, 10)
    shown = square.refunds.get(back.id).refund
    assert shown is not None
    assert (shown.status, shown.payment_id) == ("COMPLETED", paid.id)
    assert [each.id for each in square.refunds.list(status="COMPLETED")] == [back.id]
    payment = square.payments.get(paid.id).payment
    assert payment is not None
    assert payment.refund_ids == [back.id]
    assert payment.refunded_money is not None
    assert payment.refunded_money.amount == 400
    act(control, "fail", back.id)
    failed = square.refunds.get(back.id).refund
    assert failed is not None
    assert failed.status == "FAILED"


@pytest.mark.parametrize(("reason", "status"), [("please reject", "REJECTED"), ("please fail", "FAILED")])
def test_the_reason_chooses_how_a_refund_ends(square: Square, control: httpx2.Client, reason: str, status: str) -> None:
    paid = pay(square, "key-1")
    back = refund(square, paid.id, 400, "key-2", reason=reason)
    advance(control, 10)
    shown = square.refunds.get(back.id).refund
    assert shown is not None
    assert shown.status == status
    assert refund(square, paid.id, 1000, "key-3").status == "PENDING"


def test_the_unverified_facts_of_refunds_run_both_ways(square: Square, control: httpx2.Client) -> None:
    switch(control, refund_status="completed", refund_ids="absent")
    paid = pay(square, "key-1")
    assert refund(square, paid.id, 100, "key-2").status == "COMPLETED"
    payment = square.payments.get(paid.id).payment
    assert payment is not None
    assert payment.refund_ids is None
    switch(control, refund_status="pending", pending_refund="blocks")
    refund(square, paid.id, 100, "key-3")
    with pytest.raises(ApiError) as caught:
        refund(square, paid.id, 100, "key-4")
    assert fault_of(caught) == (400, "REFUND_ERROR", "REFUND_ALREADY_PENDING")


def test_refunds_never_exceed_the_payment(square: Square) -> None:
    paid = pay(square, "key-1")
    refund(square, paid.id, 700, "key-2")
    with pytest.raises(ApiError) as caught:
        refund(square, paid.id, 301, "key-3")
    assert fault_of(caught) == (400, "REFUND_ERROR", "REFUND_AMOUNT_INVALID")
    assert refund(square, paid.id, 300, "key-4").status == "PENDING"


def test_only_a_completed_payment_is_refunded(square: Square) -> None:
    approved = pay(square, "key-1", autocomplete=False)
    with pytest.raises(ApiError) as caught:
        refund(square, approved.id, 100, "key-2")
    assert fault_of(caught) == (400, "REFUND_ERROR", "PAYMENT_NOT_REFUNDABLE")
    with pytest.raises(ApiError) as caught:
        refund(square, "PAY_UNKNOWN", 100, "key-3")
    assert fault_of(caught)[0] == 404
    paid = pay(square, "key-4")
    with pytest.raises(ApiError) as caught:
        refund(square, paid.id, 100, "key-5", payment_version_token="old")
    assert fault_of(caught)[0] == 409


# -- payouts


def test_payouts_can_be_read_and_never_made(square: Square, control: httpx2.Client, simulator: Station) -> None:
    paid = pay(square, "key-1")
    refund(square, paid.id, 400, "key-2")
    advance(control, 10)
    act(control, "pay", paid.id)
    [payout] = list(square.payouts.list())
    assert payout.amount_money is not None
    assert (payout.status, payout.amount_money.amount) == ("SENT", 600)
    entries = list(square.payouts.list_entries(payout.id))
    assert [(entry.type, entry.net_amount_money and entry.net_amount_money.amount) for entry in entries] == [
        ("CHARGE", 1000),
        ("REFUND", -400),
    ]
    advance(control, 2 * DAY)
    arrived = square.payouts.get(payout.id).payout
    assert arrived is not None
    assert arrived.status == "PAID"
    answer = httpx2.post(f"{simulator.url}/square/v2/payouts", headers={"authorization": "Bearer any"}, json={})
    assert answer.status_code == 405


# -- events


def test_missed_events_can_be_searched(square: Square, control: httpx2.Client) -> None:
    paid = pay(square, "key-1")
    refund(square, paid.id, 400, "key-2")
    advance(control, 10)
    oldest_first: Any = {"sort": {"order": "ASC"}}
    found = square.events.search_events(query=oldest_first)
    assert [event.type for event in found.events or []] == [
        "payment.created",
        "refund.created",
        "payment.updated",
        "refund.updated",
    ]
    assert len({event.event_id for event in found.events or []}) == 4
    filtered: Any = {"filter": {"event_types": ["refund.updated"]}}
    [updated] = square.events.search_events(query=filtered).events or []
    assert updated.data is not None
    assert updated.data.object is not None
    assert updated.data.object["refund"]["status"] == "COMPLETED"
    page = square.events.search_events(query=oldest_first, limit=3)
    rest = square.events.search_events(query=oldest_first, limit=3, cursor=page.cursor)
    assert [event.type for event in rest.events or []] == ["refund.updated"]
    assert rest.cursor is None


@pytest.mark.parametrize(
    ("kept", "days", "count"), [("28_days", 27, 1), ("28_days", 29, 0), ("1_day", 2, 0), ("for_ever", 400, 1)]
)
def test_events_are_kept_as_long_as_the_switch_says(
    square: Square, control: httpx2.Client, *, kept: str, days: int, count: int
) -> None:
    switch(control, events_retention=kept)
    pay(square, "key-1")
    advance(control, days * DAY)
    assert len(square.events.search_events().events or []) == count


# -- keys


def test_a_repeat_under_the_same_key_is_the_first_answer(square: Square, control: httpx2.Client) -> None:
    first, again = pay(square, "key-1"), pay(square, "key-1")
    assert first == again
    back = refund(square, first.id, 100, "key-1")
    assert refund(square, first.id, 100, "key-1").id == back.id
    assert [kind for kind, _, _ in movements(control)] == ["charge", "refund"]


def test_another_body_under_the_key_is_an_error(square: Square, control: httpx2.Client) -> None:
    pay(square, "key-1")
    with pytest.raises(ApiError) as caught:
        pay(square, "key-1", amount=2000)
    assert fault_of(caught) == (400, "INVALID_REQUEST_ERROR", "IDEMPOTENCY_KEY_REUSED")
    assert movements(control) == [("charge", "moved", 1000)]


@pytest.mark.parametrize(
    ("kept", "seconds", "count"),
    [("for_ever", 400 * DAY, 1), ("1_day", DAY - 60, 1), ("1_day", DAY + 60, 2), ("1_hour", 3700, 2)],
)
def test_the_key_is_kept_as_long_as_the_switch_says(
    square: Square, control: httpx2.Client, *, kept: str, seconds: float, count: int
) -> None:
    switch(control, key_retention=kept)
    pay(square, "key-1")
    advance(control, seconds)
    pay(square, "key-1")
    assert movements(control) == [("charge", "moved", 1000)] * count


def test_a_500_is_stored_under_the_key_or_not(square: Square, control: httpx2.Client) -> None:
    plan(control, "square.charge:error_500_no_object")
    for _ in range(2):
        with pytest.raises(ApiError) as caught:
            pay(square, "key-1")
        assert fault_of(caught) == (500, "API_ERROR", "INTERNAL_SERVER_ERROR")
    switch(control, stored_failures="client_errors")
    plan(control, "square.charge:error_500_no_object")
    with pytest.raises(ApiError):
        pay(square, "key-2")
    assert pay(square, "key-2").status == "COMPLETED"


def test_a_decline_is_stored_under_the_key_or_not(square: Square, control: httpx2.Client) -> None:
    for kept, count in (("every_answer", 1), ("client_errors", 1), ("none", 2)):
        switch(control, stored_failures=kept)
        for _ in range(2):
            with pytest.raises(ApiError):
                pay(square, f"key-{kept}", source="cnon:card-nonce-declined", reference_id=kept)
        params = {"dialect": "square", "kind": "charge", "reference": kept}
        assert len(control.get("/objects", params=params).json()) == count


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("conflict", (409, "INVALID_REQUEST_ERROR", "CONFLICT")),
        ("key_reused", (400, "INVALID_REQUEST_ERROR", "IDEMPOTENCY_KEY_REUSED")),
        ("temporary_error", (503, "API_ERROR", "TEMPORARY_ERROR")),
    ],
)
def test_a_twin_meanwhile_is_told_what_the_switch_says(
    square: Square, control: httpx2.Client, how: str, told: tuple[int, str, str]
) -> None:
    switch(control, in_flight=how)
    plan(control, "square.charge:slow_after(1)")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(pay, square, "key-1")
        while not control.get("/faults").json()["struck"]:
            assert not first.done()
        with pytest.raises(ApiError) as caught:
            pay(square, "key-1")
        assert fault_of(caught) == told
        answer = first.result()
    assert pay(square, "key-1") == answer
    assert movements(control) == [("charge", "moved", 1000)]


# -- faults


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("unauthorized", (401, "AUTHENTICATION_ERROR", "UNAUTHORIZED")),
        ("forbidden", (403, "AUTHENTICATION_ERROR", "FORBIDDEN")),
        ("rate_limited", (429, "RATE_LIMIT_ERROR", "RATE_LIMITED")),
        ("in_flight", (409, "INVALID_REQUEST_ERROR", "CONFLICT")),
        ("gateway_502", (502, "API_ERROR", "BAD_GATEWAY")),
        ("gateway_503", (503, "API_ERROR", "SERVICE_UNAVAILABLE")),
        ("gateway_504", (504, "API_ERROR", "GATEWAY_TIMEOUT")),
    ],
)
def test_trouble_before_the_keys_leaves_the_key_unused(
    square: Square, control: httpx2.Client, fault: str, told: tuple[int, str, str]
) -> None:
    plan(control, f"square.charge:{fault}")
    with pytest.raises(ApiError) as caught:
        pay(square, "key-1")
    assert fault_of(caught) == told
    assert movements(control) == []
    assert pay(square, "key-1").status == "COMPLETED"


def test_a_500_after_the_effect_is_overcome_by_the_same_key_or_found_by_listing(
    square: Square, control: httpx2.Client
) -> None:
    plan(control, "square.charge:gateway_502_after")
    with pytest.raises(ApiError) as caught:
        pay(square, "key-1", reference_id="order-1")
    assert caught.value.status_code == 502
    assert [payment.reference_id for payment in square.payments.list()] == ["order-1"]
    assert pay(square, "key-1", reference_id="order-1").status == "COMPLETED"
    assert movements(control) == [("charge", "moved", 1000)]


def test_a_refusal_by_plan_has_the_code_that_was_asked_for(square: Square, control: httpx2.Client) -> None:
    plan(control, "square.charge:refused(CARD_EXPIRED)")
    with pytest.raises(ApiError) as caught:
        pay(square, "key-1")
    assert fault_of(caught) == (400, "PAYMENT_METHOD_ERROR", "CARD_EXPIRED")
    paid = pay(square, "key-2")
    plan(control, "square.refund:refused")
    with pytest.raises(ApiError) as caught:
        refund(square, paid.id, 100, "key-3")
    assert fault_of(caught) == (400, "REFUND_ERROR", "REFUND_DECLINED")


def test_the_packages_own_retries_send_the_same_key_and_pay_once(square: Square, control: httpx2.Client) -> None:
    plan(control, "square.charge:gateway_503_after@1-2")
    money: Any = {"amount": 1000, "currency": "USD"}
    made = square.payments.create(source_id="cnon:card-nonce-ok", idempotency_key="key-1", amount_money=money)
    assert made.payment is not None
    assert made.payment.status == "COMPLETED"
    assert movements(control) == [("charge", "moved", 1000)]


def test_a_missing_token_is_401_and_a_wrong_path_404(simulator: Station) -> None:
    assert httpx2.get(f"{simulator.url}/square/v2/payments").status_code == 401
    headers = {"authorization": "Bearer any"}
    assert httpx2.get(f"{simulator.url}/square/v2/nothing", headers=headers).status_code == 404
    assert httpx2.delete(f"{simulator.url}/square/v2/payments", headers=headers).status_code == 405


def test_times_on_the_wire_are_the_simulated_ones(square: Square, control: httpx2.Client) -> None:
    advance(control, DAY)
    now = datetime.fromisoformat(control.get("/clock").json()["now"])
    made = datetime.fromisoformat(pay(square, "key-1").created_at)
    assert timedelta(seconds=-1) < made - now < timedelta(seconds=60)
