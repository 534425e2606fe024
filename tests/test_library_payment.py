"""Paying from Python: the same flow as over HTTP."""

import pytest

import tallystick
from tallystick import app, sync
from tallystick.database.explain.flow import explain
from tallystick.ledger.outcome import Rejected
from tallystick.settings import Settings
from tallystick.simulator.process import RunningSimulator
from tests import servers
from tests.payments import charged
from tests.providers.worlds import Control

LAMP = {"sku": "lamp", "quantity": 1, "amount_micros": 50_000_000, "currency": "EUR"}


@pytest.fixture
def at_simulator(payouts_simulator: RunningSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_SIMULATOR_PORT", payouts_simulator.url.rpartition(":")[2])


@pytest.mark.usefixtures("at_simulator")
async def test_an_order_is_paid_once(embedded18: servers.Server, control: Control) -> None:
    dsn = embedded18.fresh_database()
    async with tallystick.open(database_url=dsn) as tally:
        await tally.set_stock("lamp", 3)
        made = await tally.reserve(**LAMP, idempotency_key="k")  # type: ignore[arg-type]
        assert isinstance(made, tallystick.OrderMade)
        token = made.view.reservation_token
        first = await tally.pay(made.view.id, reservation_token=token, idempotency_key="p")
        second = await tally.pay(made.view.id, reservation_token=token, idempotency_key="p")
        assert isinstance(first, tallystick.Paying)
        assert isinstance(second, tallystick.Paying)
        assert (first.payment, first.client_secret) == (second.payment, second.client_secret)
        found = await tally.order(made.view.id)
        assert isinstance(found, tallystick.OrderView)
        assert found.payment == first.payment
        assert (first.is_replayed, second.is_replayed) == (False, True)
        refused = await tally.pay(made.view.id, reservation_token="rt_", idempotency_key="q")
        assert isinstance(refused, Rejected)
    assert len(charged(control)) == 1
    # And everything of it is told, by the order's id, its key, or the provider's id of the payment.
    async with app.running(Settings(database_url=dsn)) as service:
        tenant = await service.tenant("default")
        assert tenant is not None
        payment = str(first.payment.payment_intent_id)
        told = [
            next(one for one in (await explain(service.database, tenant, name)).found if one.what == "order")
            for name in (made.view.id, "k", payment, "p")
        ]
    assert told[0] == told[1] == told[2] == told[3]
    assert payment in told[0].summary
    timeline = "\n".join(step.what for step in told[0].timeline)
    assert "charge of 50.00 EUR at simulator, attempt 1, logged under" in timeline
    assert "POST /v1/payment_intents -> 200 req_" in timeline
    assert "key 'p' of a payment is bound to attempt 1" in timeline
    assert f"charge COMPLETED {payment}" in timeline
    assert first.client_secret is not None
    assert first.client_secret.reveal() not in timeline


@pytest.mark.usefixtures("at_simulator")
def test_the_synchronous_twin_pays_too(embedded18: servers.Server, control: Control) -> None:
    with sync.open(database_url=embedded18.fresh_database()) as tally:
        tally.set_stock("lamp", 2)
        made = tally.reserve(**LAMP, idempotency_key="k")  # type: ignore[arg-type]
        assert isinstance(made, tallystick.OrderMade)
        paid = tally.pay(made.view.id, reservation_token=made.view.reservation_token, idempotency_key="p")
        assert isinstance(paid, tallystick.Paying)
        assert paid.payment.payment_intent_id == charged(control)[0]["id"]
