"""SIGTERM in the middle of a payment: the flight is finished and recorded, or left for the collector. Never twice."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tallystick.simulator.process import start
from tests.cli.test_embedded_killed import Process, home, started
from tests.providers.worlds import Control

__all__ = ["home"]

PATIENCE_SECONDS = 90
# What orchestrators give before they kill: Kubernetes 30 s, systemd 90 s.
GRACE_SECONDS = 30
ORDER = {"sku": "lamp", "quantity": 1, "amount_micros": 25_000_000, "currency": "EUR"}


class Shop:
    def __init__(self, process: Process, home: Path) -> None:
        self.address = process.wait_for(r"API +(http://\S+)/v1")[1]
        key = (home / "api_key").read_text().strip()
        self.client = httpx2.Client(
            base_url=self.address, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_SECONDS
        )

    def order(self) -> dict[str, Any]:
        assert self.client.put("/v1/skus/lamp", json={"stock": 5}).status_code in {200, 201}
        made = self.client.post("/v1/orders", json=ORDER, headers={"idempotency-key": "order-1"})
        assert made.status_code == 201, made.text
        return dict(made.json())

    def pay(self, order: dict[str, Any]) -> httpx2.Response:
        return self.client.post(
            f"/v1/orders/{order['id']}/pay",
            json={"reservation_token": order["reservation_token"], "payment_method": "pm_card_visa"},
            headers={"idempotency-key": "pay-1"},
        )


def charges(control: Control) -> list[Any]:
    return control.made("stripe", "payment_intent")


@pytest.mark.parametrize(("command", "fault"), [("up", "hang"), ("serve", "slow_after(2)")])
def test_a_payment_under_way_when_the_service_is_told_to_stop_moves_money_once(
    home: Path, tmp_path: Path, command: str, fault: str, record_property: Callable[[str, object], None]
) -> None:
    """The provider has charged and not answered. Its answer is recorded, or a worker asks for it later."""
    with contextlib.ExitStack() as stack:
        simulator = start(tmp_path / "books.sqlite", log=tmp_path / "log")
        stack.callback(simulator.stop)
        control = Control(simulator.url)
        port = simulator.url.rpartition(":")[2]
        settings = {"TALLY_STRIPE_API_KEY": "sk_test_x", "TALLY_STRIPE_API_BASE": f"{simulator.url}/stripe"}
        settings |= {"TALLY_PROVIDER": "stripe", "TALLY_SIMULATOR_PORT": port}
        told = stack.enter_context(started(home, "up", **settings))
        if command == "serve":
            told.wait_for(r"API +(http://\S+)/v1")
            told = stack.enter_context(started(home, "serve", **settings))
        shop = Shop(told, home)
        order = shop.order()
        control.plan(f"stripe.charge:{fault}")
        answers: list[httpx2.Response] = []
        paying = threading.Thread(target=lambda: answers.append(shop.pay(order)))
        paying.start()
        until = time.monotonic() + PATIENCE_SECONDS
        while not charges(control):
            assert time.monotonic() < until, "nothing was charged"
            time.sleep(0.01)
        began = time.monotonic()
        status = told.end(signal.SIGTERM)
        took = time.monotonic() - began
        paying.join(PATIENCE_SECONDS)
        assert status == 0, told.said
        record_property("counted", f"tally {command}, told to stop in a payment that is {fault}: {took:.1f} s")
        assert took < GRACE_SECONDS
        # Who asked was answered: with the payment, or that it is pending.
        assert [answer.status_code for answer in answers] == [202 if fault == "hang" else 201], answers
        control.call("DELETE", "faults")
        after = stack.enter_context(started(home, "up", **settings))
        again = Shop(after, home)
        until = time.monotonic() + PATIENCE_SECONDS
        while (paid := again.pay(order)).status_code == 202:
            assert time.monotonic() < until, "it was never finished"
            time.sleep(0.2)
        assert paid.status_code in {200, 201}, paid.text
        assert len(charges(control)) == 1
        assert after.end() == 0
