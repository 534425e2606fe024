"""The control API: the second opinion, and how a test steers."""

from typing import Any

import httpx2
import pytest
import stripe
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tallystick.simulator.running import endpoint
from tests.simulator.station import DAY, Station, pay, transfer


def pem(key: Any, lock: Any = None) -> str:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return str(key.private_bytes(encoding, form, lock or serialization.NoEncryption()).decode())


EC_KEY = pem(ec.generate_private_key(ec.SECP256R1()))
LOCKED_KEY = pem(rsa.generate_private_key(65537, 2048), serialization.BestAvailableEncryption(b"secret"))


@pytest.fixture
def client(simulator: Station) -> Any:
    return simulator.stripe()


def test_the_books_are_summed_by_kind_state_and_currency(client: Any, simulator: Station) -> None:
    transfer(client, "k1")
    transfer(client, "k2", currency="eur", amount=7)
    with pytest.raises(stripe.CardError):
        pay(client, payment_method="pm_card_chargeDeclined")
    found = {(row["kind"], row["state"], row["currency"]): (row["count"], row["amount"]) for row in books(simulator)}
    assert found["transfer", "moved", "usd"] == (1, 100)
    assert found["transfer", "moved", "eur"] == (1, 7)
    assert found["charge", "failed", "usd"] == (1, 1000)


def books(simulator: Station) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = simulator.call("GET", "books")["entries"]
    return rows


def test_movements_are_what_moved_and_are_paged(client: Any, simulator: Station) -> None:
    made = [transfer(client, transfer_group=f"g{number}").id for number in range(3)]
    with pytest.raises(stripe.CardError):
        pay(client, payment_method="pm_card_chargeDeclined")
    first = simulator.call("GET", "movements?limit=2")
    rest = simulator.call("GET", f"movements?after={first[-1]['number']}")
    assert [row["id"] for row in first + rest] == made
    assert [row["reference"] for row in first] == ["g0", "g1"]
    assert simulator.call("GET", "movements?dialect=wise") == []


def test_objects_are_found_by_reference(client: Any, simulator: Station) -> None:
    made = pay(client, metadata={"ref": "order-1"})
    found = simulator.call("GET", "objects?dialect=stripe&kind=charge&reference=order-1")
    assert [row["id"] for row in found] == [made.latest_charge]
    assert found[0]["body"]["object"] == "charge"
    assert simulator.call("GET", "objects?dialect=stripe&kind=charge&reference=order-2") == []


def test_the_clock_only_goes_forward(simulator: Station) -> None:
    before = simulator.call("GET", "clock")
    after = simulator.call("POST", "clock", {"advance_seconds": DAY})
    assert after["offset_seconds"] == before["offset_seconds"] + DAY
    assert after["now"] > before["now"]
    assert simulator.ask("POST", "clock", {"advance_seconds": -1})[0] == 400


def test_a_clock_that_was_asked_too_much_of_goes_on(simulator: Station) -> None:
    before = simulator.call("GET", "clock")["offset_seconds"]
    assert simulator.ask("POST", "clock", {"advance_seconds": 1e12})[0] == 400
    assert simulator.call("POST", "clock", {"advance_seconds": 1})["offset_seconds"] == before + 1


def test_wise_gets_a_key_pair_where_no_secret_is_given(simulator: Station) -> None:
    simulator.call("PUT", "endpoints/wise", {"url": "http://127.0.0.1:9/", "secrets": []})
    published = httpx2.get(f"{simulator.url}/wise/v1/webhook-public-key", headers={"authorization": "Bearer x"})
    assert published.text.startswith("-----BEGIN PUBLIC KEY-----")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("paypal=http://x/,s", "'paypal' is no dialect"),
        ("stripe=ftp://x/,s", "no address"),
        ("stripe=http://x/", "give the secret"),
        ("adyen=http://x/,whsec_1", "hexadecimal"),
        ("wise=http://x/,whsec_1", "RSA"),
    ],
)
def test_a_wrong_endpoint_on_the_command_line_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        endpoint(text)


def test_no_count_is_without_bounds(client: Any, simulator: Station) -> None:
    transfer(client)
    assert simulator.call("GET", "movements?limit=-1") == []
    assert simulator.call("GET", f"movements?after={10**30}") == []
    assert len(simulator.call("GET", f"movements?after=-{10**30}&limit={10**30}")) == 1


def test_faults_are_listed_with_their_catalogue_and_cleared(client: Any, simulator: Station) -> None:
    simulator.plan("stripe.transfer:html_200@2, stripe.webhook:webhook_lost")
    transfer(client)
    report = simulator.call("GET", "faults")
    assert [(row["rule"], row["seen"], row["struck"]) for row in report["active"]] == [
        ("stripe.transfer:html_200@2", 1, 0),
        ("stripe.webhook:webhook_lost", 0, 0),
    ]
    assert {"name", "stage", "meaning", "source", "dialects"} <= set(report["catalogue"][0])
    simulator.call("DELETE", "faults")
    assert simulator.call("GET", "faults")["active"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "faults", {"plan": "stripe.transfer:explode"}, 400, "explode"),
        ("POST", "faults", {"plan": 7}, 400, "str"),
        ("PUT", "switches", {"stripe.key_namespace": "galaxy"}, 400, "platform"),
        ("PUT", "switches", {"stripe.nothing": "x"}, 404, "stripe.nothing"),
        ("PUT", "endpoints/paypal", {"url": "http://x", "secrets": ["s"]}, 404, "paypal"),
        ("PUT", "endpoints/stripe", {"url": "http://x", "secrets": []}, 400, "secret"),
        ("PUT", "endpoints/stripe", {"url": "http://x", "secrets": [""]}, 400, "secret"),
        ("PUT", "endpoints/stripe", {"url": "ftp://x", "secrets": ["s"]}, 400, "no address"),
        ("PUT", "endpoints/stripe", {"url": "http://127.0.0.1:port/", "secrets": ["s"]}, 400, "no address"),
        ("PUT", "endpoints/adyen", {"url": "http://x", "secrets": ["whsec_1"]}, 400, "hexadecimal"),
        ("PUT", "endpoints/wise", {"url": "http://x", "secrets": ["whsec_1"]}, 400, "RSA"),
        ("PUT", "endpoints/wise", {"url": "http://x", "secrets": [EC_KEY]}, 400, "RSA"),
        ("PUT", "endpoints/wise", {"url": "http://x", "secrets": [LOCKED_KEY]}, 400, "without a passphrase"),
        ("PUT", "balances/stripe", {"usd": 2**64}, 400, "too large"),
        ("POST", "clock", {"advance_seconds": 200 * 365 * DAY}, 400, "36525 days"),
        ("POST", "clock", {"advance_seconds": 1e300}, 400, "36525 days"),
        ("POST", "act", {"dialect": "stripe", "action": "pay", "id": "po_1"}, 404, "po_1"),
        ("POST", "act", {"dialect": "paypal", "action": "pay", "id": "po_1"}, 404, "paypal"),
        ("GET", "nothing", None, 404, "nothing"),
        ("PATCH", "books", {}, 404, "books"),
        ("GET", "movements?limit=many", None, 400, "many"),
    ],
)
def test_what_is_wrong_is_said(
    simulator: Station, *, method: str, path: str, body: object, status: int, says: str
) -> None:
    answered, error = simulator.ask(method, path, body)
    assert answered == status
    assert says in error["error"]


def test_an_action_that_an_object_does_not_have_is_refused(client: Any, simulator: Station) -> None:
    made = transfer(client)
    assert simulator.ask("POST", "act", {"dialect": "stripe", "action": "explode", "id": made.id})[0] == 404
    simulator.act("reverse", made.id)
    assert client.transfers.retrieve(made.id).reversed is True


def test_every_switch_cites_its_source_and_every_value_can_be_set(simulator: Station) -> None:
    switches = simulator.call("GET", "switches")
    assert {row["name"].split(".")[0] for row in switches} == {"stripe", "adyen", "square", "wise"}
    for row in switches:
        assert row["source"].startswith("docs/providers.md"), row["name"]
        assert row["value"] == row["values"][0]
        assert len(row["values"]) > 1
        for value in row["values"]:
            simulator.switch(row["name"], value)
    simulator.call("POST", "reset")
    assert all(row["value"] == row["values"][0] for row in simulator.call("GET", "switches"))


def test_secrets_are_never_shown(simulator: Station) -> None:
    simulator.call("PUT", "endpoints/stripe", {"url": "http://127.0.0.1:9/", "secrets": ["whsec_hidden"]})
    shown = [simulator.call("GET", path) for path in ("endpoints", "books", "deliveries", "faults", "switches")]
    assert "whsec_hidden" not in str(shown)


def test_a_reset_empties_everything_but_ids_and_time(client: Any, simulator: Station) -> None:
    made = transfer(client, "k1")
    simulator.plan("stripe.transfer:hang@5")
    offset = simulator.call("GET", "clock")["offset_seconds"]
    simulator.call("POST", "reset")
    assert books(simulator) == []
    assert client.events.list().data == []
    assert simulator.call("GET", "faults")["active"] == []
    assert simulator.call("GET", "clock")["offset_seconds"] == offset
    again = transfer(client, "k1")
    assert again.id > made.id


def test_a_foreign_page_in_a_browser_steers_nothing(simulator: Station) -> None:
    """It has no password: whatever site a person visits could post here."""
    host = simulator.url.removeprefix("http://")
    for headers in (
        {"host": "evil.example"},
        {"host": host, "origin": "http://evil.example"},
        {"host": host, "origin": "null"},
    ):
        reply = httpx2.post(f"{simulator.url}/_sim/reset", headers=headers, content=b"{}")
        assert reply.status_code == 403, headers
    assert httpx2.post(f"{simulator.url}/_sim/reset").status_code == 200
