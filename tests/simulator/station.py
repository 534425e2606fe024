"""A simulator under test, and a receiver of its webhooks: both real servers on 127.0.0.1."""

import json
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import stripe

from tallystick.simulator.process import RunningSimulator

SECRET = "whsec_test"
DAY = 86_400


class Station:
    """The simulator's control API, and clients of it."""

    def __init__(self, running: RunningSimulator) -> None:
        self.running = running
        self.url = running.url

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """The status and the JSON of a control call."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_sim/{path}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def call(self, method: str, path: str, body: object = None) -> Any:
        status, answer = self.ask(method, path, body)
        assert status == 200, answer
        return answer

    def plan(self, text: str) -> None:
        self.call("POST", "faults", {"plan": text})

    def struck(self) -> dict[str, int]:
        found: dict[str, int] = self.call("GET", "faults")["struck"]
        return found

    def advance(self, seconds: float) -> None:
        self.call("POST", "clock", {"advance_seconds": seconds})

    def switch(self, name: str, value: str) -> None:
        self.call("PUT", "switches", {name: value})

    def act(self, action: str, object_id: str) -> None:
        self.call("POST", "act", {"dialect": "stripe", "action": action, "id": object_id})

    def movements(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.call("GET", "movements?dialect=stripe") if row["kind"] == kind]

    def deliveries(self) -> list[dict[str, Any]]:
        """Oldest first."""
        found: list[dict[str, Any]] = self.call("GET", "deliveries")
        return found[::-1]

    def stripe(self, key: str = "sk_test_1", **options: Any) -> Any:
        """The official package with its base address changed and its retries off, and nothing else."""
        # A client of its own: the default one keeps connections between tests, and this one has a deadline.
        transport = stripe.RequestsClient(timeout=options.pop("timeout", 20))
        addresses: Any = {"api": f"{self.url}/stripe"}
        options.setdefault("max_network_retries", 0)
        return stripe.StripeClient(key, base_addresses=addresses, http_client=transport, **options).v1


class Receiver:
    """Takes webhooks and answers with the statuses it was given; 200 when they are used up."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.retry_after = ""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.send_header("content-length", "0")
                if receiver.retry_after:
                    self.send_header("Retry-After", receiver.retry_after)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  http.server's name
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    def types(self) -> list[str]:
        return [json.loads(body)["type"] for _, body in self.received]

    def events(self) -> list[Any]:
        return [json.loads(body) for _, body in self.received]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def transfer(client: Any, key: str | None = None, **fields: Any) -> Any:
    """A transfer of 1.00 USD to a good account, unless the fields say otherwise."""
    sent = {"amount": 100, "currency": "usd", "destination": "acct_good", "transfer_group": "payout-1", **fields}
    return client.transfers.create(sent, {} if key is None else {"idempotency_key": key})


def pay(client: Any, key: str | None = None, **fields: Any) -> Any:
    """A payment of 10.00 USD with a good card."""
    sent = {"amount": 1000, "currency": "usd", "payment_method": "pm_card_visa", "confirm": True, **fields}
    return client.payment_intents.create(sent, {} if key is None else {"idempotency_key": key})
