"""Webhooks: the schedule on the advanced clock, and every fault of theirs as the receiver sees it."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import stripe

from tallystick.simulator.catalogue import CATALOGUE, Stage
from tallystick.simulator.dialects import every_dialect
from tallystick.simulator.process import start
from tests.simulator.station import DAY, SECRET, Receiver, Station, transfer

GAPS = next(dialect.retry_gaps_seconds for dialect in every_dialect() if dialect.name == "stripe")


@pytest.fixture
def client(simulator: Station) -> Any:
    return simulator.stripe()


def verified(item: tuple[dict[str, str], bytes]) -> bool:
    """By the official package, whatever the time."""
    headers, body = item
    try:
        stripe.WebhookSignature.verify_header(body.decode(), headers["stripe-signature"], SECRET, tolerance=None)
    except stripe.SignatureVerificationError:
        return False
    return True


def test_a_webhook_is_sent_once_when_it_is_taken(client: Any, simulator: Station, receiver: Receiver) -> None:
    transfer(client)
    simulator.advance(30 * DAY)
    assert receiver.types() == ["transfer.created"]
    assert [(row["state"], row["attempts"]) for row in simulator.deliveries()] == [("delivered", 1)]


def test_a_refused_webhook_is_sent_again_by_the_schedule(client: Any, simulator: Station, receiver: Receiver) -> None:
    receiver.statuses = [500, 302, 404]
    transfer(client)
    simulator.advance(0)
    assert len(receiver.received) == 1
    for attempts, gap in enumerate(GAPS[:3], start=1):
        simulator.advance(gap - 30)
        assert len(receiver.received) == attempts
        simulator.advance(31)
        assert len(receiver.received) == attempts + 1
    assert [(row["state"], row["attempts"]) for row in simulator.deliveries()] == [("delivered", 4)]
    assert len({event["id"] for event in receiver.events()}) == 1
    assert all(verified(item) for item in receiver.received)


def test_the_provider_gives_up_when_the_schedule_is_used_up(
    client: Any, simulator: Station, receiver: Receiver
) -> None:
    receiver.statuses = [500] * 50
    transfer(client)
    for gap in (0.0, *GAPS, DAY, DAY):
        simulator.advance(gap + 1)
    assert len(receiver.received) == len(GAPS) + 1
    assert simulator.deliveries()[0]["state"] == "failed"
    assert 2.5 * DAY < sum(GAPS) <= 3 * DAY


def test_nobody_listening_is_a_failed_attempt(client: Any, simulator: Station) -> None:
    gone = Receiver()
    gone.close()
    simulator.call("PUT", "endpoints/stripe", {"url": gone.url, "secrets": [SECRET]})
    transfer(client)
    simulator.advance(0)
    row = simulator.deliveries()[0]
    assert (row["state"], row["attempts"]) == ("pending", 1)
    assert "refused" in row["note"].lower() or "Connect" in row["note"]


def payment(reference: str) -> dict[str, Any]:
    return {
        "amount": {"currency": "EUR", "value": 1000},
        "merchantAccount": "TestMerchant",
        "reference": reference,
        "paymentMethod": {"type": "scheme", "storedPaymentMethodId": "card"},
    }


def test_pending_deliveries_survive_a_sigkill(tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.statuses = [500]
    running = start(tmp_path / "books", webhooks=[f"stripe={receiver.url},{SECRET}"])
    try:
        station = Station(running)
        transfer(station.stripe())
        station.advance(0)
        running.kill()
        assert len(receiver.received) == 1
        running = start(tmp_path / "books")
        Station(running).advance(GAPS[0] + 1)
        assert len(receiver.received) == 2
        assert all(verified(item) for item in receiver.received)
    finally:
        running.stop()
        receiver.close()


def test_a_stored_event_can_be_sent_again_by_hand(client: Any, simulator: Station, receiver: Receiver) -> None:
    transfer(client)
    simulator.advance(0)
    event = client.events.list().data[0]
    simulator.call("POST", "deliver", {"dialect": "stripe", "event_id": event.id})
    assert [each["id"] for each in receiver.events()] == [event.id, event.id]
    assert simulator.ask("POST", "deliver", {"dialect": "stripe", "event_id": "evt_none"})[0] == 404


def test_adyens_queue_waits_for_its_failed_head(simulator: Station) -> None:
    receiver = Receiver()
    receiver.statuses = [500]
    simulator.call("PUT", "endpoints/adyen", {"url": receiver.url, "secrets": ["AB" * 32]})
    try:
        for reference in ("first", "second"):
            raw_payment(simulator, payment(reference))
        simulator.advance(0)
        assert len(receiver.received) == 1
        simulator.advance(121)
        references = [body.split(b"merchantReference")[1][:12] for _, body in receiver.received]
        assert [b"first" in each for each in references] == [True, True, False]
    finally:
        simulator.call("DELETE", "endpoints/adyen")
        receiver.close()


def raw_payment(simulator: Station, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"{simulator.url}/adyen/checkout/v72/payments",
        json.dumps(body).encode(),
        {"x-api-key": "any", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        assert reply.status == 200


def test_a_provider_that_is_held_up_does_not_silence_another(
    client: Any, simulator: Station, receiver: Receiver
) -> None:
    refusing = Receiver()
    refusing.statuses = [500] * 10
    simulator.call("PUT", "endpoints/adyen", {"url": refusing.url, "secrets": ["AB" * 32]})
    try:
        for number in range(80):
            raw_payment(simulator, payment(f"order-{number}"))
        simulator.advance(0)
        transfer(client)
        simulator.advance(0)
        assert receiver.types() == ["transfer.created"]
        assert len(refusing.received) == 1
    finally:
        simulator.call("POST", "reset")
        refusing.close()


def test_one_long_jump_is_all_its_steps(client: Any, simulator: Station, receiver: Receiver) -> None:
    receiver.statuses = [500] * 50
    transfer(client)
    simulator.advance(30 * DAY)
    assert len(receiver.received) == len(GAPS) + 1
    assert simulator.deliveries()[0]["state"] == "failed"
    receiver.statuses = []
    simulator.plan("stripe.payout:paid_then_failed")
    made = client.payouts.create({"amount": 5000, "currency": "usd"})
    simulator.advance(30 * DAY)
    [failed] = [event for event in receiver.events() if event["type"] == "payout.failed"]
    assert failed["created"] < made.created + 10 * DAY


def test_seeded_faults_of_webhooks_do_not_depend_on_the_order(
    client: Any, simulator: Station, receiver: Receiver
) -> None:
    references = [f"payout-{number}" for number in range(12)]
    lost = []
    for order in (references, references[::-1]):
        simulator.call("POST", "reset")
        simulator.call("PUT", "endpoints/stripe", {"url": receiver.url, "secrets": [SECRET]})
        simulator.call("POST", "faults", {"plan": "stripe.webhook:webhook_lost=50%", "seed": 7})
        groups = {transfer(client, transfer_group=group).id: group for group in order}
        events = {event.id: event.data.object.id for event in client.events.list({"limit": 100}).data}
        rows = simulator.deliveries()
        lost.append({groups[events[row["event_id"]]] for row in rows if row["state"] == "lost"})
    assert 0 < len(lost[0]) < len(references)
    assert lost[0] == lost[1]


# -- faults


def test_a_lost_webhook_never_comes_but_is_in_the_list(client: Any, simulator: Station, receiver: Receiver) -> None:
    simulator.plan("stripe.transfer.created:webhook_lost")
    transfer(client)
    simulator.advance(29 * DAY)
    assert receiver.received == []
    assert simulator.deliveries()[0]["state"] == "lost"
    assert len(client.events.list({"type": "transfer.created"}).data) == 1


def test_a_doubled_webhook_has_one_id(client: Any, simulator: Station, receiver: Receiver) -> None:
    simulator.plan("stripe.webhook:webhook_doubled")
    transfer(client)
    simulator.advance(0)
    assert len(receiver.received) == 2
    assert len({event["id"] for event in receiver.events()}) == 1


def test_two_events_for_one_change_have_two_ids(client: Any, simulator: Station, receiver: Receiver) -> None:
    simulator.plan("stripe.transfer:webhook_two_events")
    made = transfer(client)
    simulator.advance(0)
    events = receiver.events()
    assert len({event["id"] for event in events}) == 2
    assert {event["data"]["object"]["id"] for event in events} == {made.id}
    assert {event["type"] for event in events} == {"transfer.created"}
    assert len(client.events.list().data) == 2


def test_a_late_webhook_comes_after_three_days_and_is_signed_in_real_time(
    client: Any, simulator: Station, receiver: Receiver
) -> None:
    simulator.plan("stripe.*:webhook_late")
    made = transfer(client)
    simulator.advance(3 * DAY - 60)
    assert receiver.received == []
    simulator.advance(61)
    (headers, body), *rest = receiver.received
    assert rest == []
    signed_at = int(headers["stripe-signature"].split(",")[0].removeprefix("t="))
    # What a receiver compares with its own clock, which nobody advanced.
    assert abs(signed_at - time.time()) < 60
    assert stripe.WebhookSignature.verify_header(body.decode(), headers["stripe-signature"], SECRET, tolerance=300)
    assert json.loads(body)["created"] == made.created


def test_a_reordered_webhook_comes_after_the_next(client: Any, simulator: Station, receiver: Receiver) -> None:
    simulator.plan("stripe.webhook:webhook_reordered")
    first, second = transfer(client), transfer(client)
    simulator.advance(2)
    assert [event["data"]["object"]["id"] for event in receiver.events()] == [second.id, first.id]


@pytest.mark.parametrize("fault", ["webhook_forged", "webhook_other_endpoint"])
def test_a_foreign_signature_comes_beside_the_good_one(
    client: Any, simulator: Station, receiver: Receiver, fault: str
) -> None:
    simulator.plan(f"stripe.webhook:{fault}")
    receiver.statuses = [400]
    transfer(client)
    simulator.advance(0)
    simulator.advance(4 * DAY)
    good = [verified(item) for item in receiver.received]
    # Sent at once: which of the two is refused first is not decided. The good one is tried until it is taken.
    assert good.count(False) == 1
    assert good.count(True) >= 1
    assert "delivered" in {row["state"] for row in simulator.deliveries() if not row["trick"]}


def test_a_stale_and_a_future_signature_are_good_but_for_their_time(
    client: Any, simulator: Station, receiver: Receiver
) -> None:
    simulator.plan("stripe.webhook:webhook_stale(3600), stripe.webhook:webhook_future@2")
    for _ in range(2):
        transfer(client)
        simulator.advance(DAY)
    times = [int(headers["stripe-signature"].split(",")[0].removeprefix("t=")) for headers, _ in receiver.received]
    assert all(verified(item) for item in receiver.received)
    assert -3610 < times[0] - time.time() <= -3590
    assert DAY - 10 < times[1] - time.time() < DAY + 10


def test_two_signatures_have_one_good_one(client: Any, simulator: Station, receiver: Receiver) -> None:
    simulator.plan("stripe.webhook:webhook_two_signatures")
    transfer(client)
    simulator.advance(0)
    headers, _ = receiver.received[0]
    assert headers["stripe-signature"].count("v1=") == 2
    assert verified(receiver.received[0])


def test_a_rolled_secret_signs_beside_the_old_one(client: Any, simulator: Station, receiver: Receiver) -> None:
    simulator.call("PUT", "endpoints/stripe", {"url": receiver.url, "secrets": ["whsec_new", SECRET]})
    transfer(client)
    simulator.advance(0)
    assert receiver.received[0][0]["stripe-signature"].count("v1=") == 2
    assert verified(receiver.received[0])


def test_every_webhook_fault_has_a_test_here() -> None:
    tested = {"lost", "doubled", "two_events", "late", "reordered", "forged", "other_endpoint", "stale", "future"}
    tested |= {"two_signatures"}
    faults = {fault.name for fault in CATALOGUE.values() if fault.stage is Stage.WEBHOOK}
    assert faults == {f"webhook_{name}" for name in tested}
