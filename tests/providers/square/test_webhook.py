"""Square's webhooks: only Square's bytes, only for our address, and read to the last field or not at all."""

import hmac
from base64 import b64encode
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from square.utils.webhooks_helper import verify_signature

from tallystick.errors import Misconfigured
from tallystick.providers.square import webhook
from tallystick.providers.square.adapter import Square
from tallystick.providers.words import Event, Forged
from tallystick.secret import Secret
from tests.providers.scripted import NOW
from tests.providers.square import samples

NAME = "x-square-hmacsha256-signature"
SECRET = "sigkey"
URL = "https://ex.com/hook"
VECTOR_BODY = b'{"a":1}'
VECTOR = "hn8b4G5564+WlTnIzL4j4xmvzqUvzBszQ6KzBRbD8Q4="
BODY = msgspec.json.encode(samples.event("refund", samples.refund(status="FAILED")))


def header(body: bytes = BODY, secret: str = SECRET, url: str = URL) -> tuple[str, str]:
    return (NAME, b64encode(hmac.digest(secret.encode(), url.encode() + body, "sha256")).decode())


def endpoint(*secrets: str, url: str = URL) -> Square:
    known = tuple(Secret(each) for each in secrets)
    return samples.adapter("http://127.0.0.1:1", webhook_secrets=known, webhook_url=url)


def forged(*headers: tuple[str, str], body: bytes = BODY, secrets: tuple[str, ...] = (SECRET,), url: str = URL) -> str:
    found = endpoint(*secrets, url=url).receive(headers, body, now=NOW)
    assert isinstance(found, Forged)
    for each in secrets:
        assert each not in found.message
    return found.code


def accepted(*headers: tuple[str, str], body: bytes = BODY, secrets: tuple[str, ...] = (SECRET,)) -> Event:
    found = endpoint(*secrets).receive(headers, body, now=NOW)
    assert not isinstance(found, Forged), found
    (event,) = found
    return event


def test_the_official_vector_verifies() -> None:
    """docs/providers.md 7."""
    assert webhook.verify([(NAME, VECTOR)], VECTOR_BODY, secrets=[Secret(SECRET)], url=URL) is None


def test_the_official_package_accepts_what_we_accept() -> None:
    name, value = header()
    assert verify_signature(
        request_body=BODY.decode(), signature_header=value, signature_key=SECRET, notification_url=URL
    )
    assert accepted((name, value)).type == "refund.updated"


def test_a_refund_that_failed_is_told_whole() -> None:
    event = accepted(header())
    assert (event.provider, event.type, event.object_id) == ("square", "refund.updated", "PAY1_R1")
    assert event.dedup_key == "6a8f5f28-54a1-4eb0-a98a-3111513fd4fc"
    assert event.change_key == "refund.updated:PAY1_R1:FAILED:2026-11-15T12:00:02.000Z"
    assert event.body == BODY
    assert event.movement is not None
    assert (event.movement.state, event.movement.parent) == ("failed", "PAY1")
    assert (event.movement.amount_micros, event.movement.reference) == (12_340_000, samples.IDEMPOTENCY_KEY)


@given(position=st.integers(0, len(BODY) - 1), bit=st.integers(0, 7))
def test_one_bit_of_the_body_forges_it(position: int, bit: int) -> None:
    flipped = bytearray(BODY)
    flipped[position] ^= 1 << bit
    assert forged(header(), body=bytes(flipped)) == "signature_wrong"


@pytest.mark.parametrize("value", ["", "x", "=", "é\udcff", header()[1][:-1], header()[1].lower()])
def test_another_signature_is_wrong_and_breaks_nothing(value: str) -> None:
    assert forged((NAME, value)) == "signature_wrong"


@pytest.mark.parametrize("url", [URL + "/", "http://ex.com/hook", "https://ex.com/other", "https://EX.com/hook"])
def test_a_valid_signature_of_another_endpoint_is_wrong(url: str) -> None:
    assert forged(header(url=url)) == "signature_wrong"
    assert forged(header(), url=url) == "signature_wrong"


def test_a_valid_signature_with_another_key_is_wrong() -> None:
    assert forged(header(secret="another")) == "signature_wrong"


@pytest.mark.parametrize("secrets", [("old", "new"), ("new", "old")])
@pytest.mark.parametrize("signer", ["old", "new"])
def test_while_a_key_is_rolled_both_are_good(secrets: tuple[str, ...], signer: str) -> None:
    assert accepted(header(secret=signer), secrets=secrets).object_id == "PAY1_R1"


def test_without_a_header_it_is_missing() -> None:
    """The old scheme's header is none."""
    assert forged(("x-square-signature", header()[1])) == "signature_missing"


def test_two_headers_are_ambiguous_even_when_both_are_right() -> None:
    assert forged(header(), (NAME.upper(), header()[1])) == "signature_ambiguous"


@pytest.mark.parametrize("secrets", [("",), ("  ",), ("\n",), (SECRET, "")])
def test_an_empty_secret_is_a_wrong_setting(secrets: tuple[str, ...]) -> None:
    """With it anybody can sign."""
    with pytest.raises(Misconfigured, match="webhook secret"):
        endpoint(*secrets)


def test_without_a_secret_or_an_address_nothing_is_believed() -> None:
    assert forged(header(secret=""), secrets=()) == "no_secret"
    assert forged(header(url=""), url="") == "no_secret"


def test_a_body_of_a_megabyte_is_the_largest() -> None:
    largest = BODY + b" " * (1024 * 1024 - len(BODY))
    assert accepted(header(largest), body=largest).object_id == "PAY1_R1"
    assert forged(header(largest + b" "), body=largest + b" ") == "too_large"


def test_no_time_is_signed_so_an_old_one_is_told_by_its_id_alone() -> None:
    square = endpoint(SECRET)
    assert square.facts.webhook_tolerance is None
    early, late = (square.receive([header()], BODY, now=NOW + timedelta(days=days)) for days in (-400, 400))
    assert early == late
    assert not isinstance(early, Forged)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"<html></html>",
        b"\xff\xfe",
        VECTOR_BODY,
        BODY[:-1],
        msgspec.json.encode(samples.event("refund", samples.refund(), event_id="")),
        msgspec.json.encode(samples.event("refund", samples.refund(), event_id=1)),
        msgspec.json.encode(samples.event("refund", samples.refund(), type="")),
        msgspec.json.encode(samples.event("refund", samples.refund(), created_at="yesterday")),
        msgspec.json.encode(samples.event("refund", samples.refund(), created_at="2026-11-15T12:00:00")),
        msgspec.json.encode(samples.event("refund", samples.refund(amount_money={"amount": "1", "currency": "USD"}))),
        msgspec.json.encode(samples.event("payment", samples.payment(amount_money={"amount": 1, "currency": "XYZ"}))),
        msgspec.json.encode(samples.event("payment", samples.payment(status=None))),
        msgspec.json.encode(samples.event("payment", samples.payment(created_at="2026-11-15T12:00:00"))),
        msgspec.json.encode(samples.event("payout", samples.payout(id=""))),
        msgspec.json.encode(samples.event("payout", samples.payout(), type="a\0b")),
        msgspec.json.encode(samples.event("payout", samples.payout(status="a\0b"))),
        b"[" * 100_000,
        b'{"event_id":"e1","type":"a","data":{"object":{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}}}",
    ],
)
def test_what_is_signed_and_cannot_be_read_is_not_passed_over(body: bytes) -> None:
    assert forged(header(body), body=body) == "unreadable"


@pytest.mark.parametrize(
    "thing",
    [
        samples.event("invoice", {"id": "d1"}, "invoice.created", data={"type": "invoice", "id": "d1"}),
        samples.event("x", {"id": "d1"}, "invoice.created", data={"type": "invoice", "id": "d1"}),
    ],
)
def test_an_event_of_another_kind_is_told_without_a_movement(thing: dict[str, object]) -> None:
    body = msgspec.json.encode(thing)
    event = accepted(header(body), body=body)
    assert (event.type, event.object_id, event.movement) == ("invoice.created", "d1", None)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("payment", samples.payment(status="APPROVED"), samples.payment(status="COMPLETED")),
        ("payment", samples.payment(version_token="v1"), samples.payment(version_token="v2")),
        ("refund", samples.refund(status="PENDING"), samples.refund(status="COMPLETED")),
        ("payout", samples.payout(version=1), samples.payout(version=2)),
        ("invoice", {"id": "d1", "state": "WON", "x": [1]}, {"id": "d1", "state": "WON", "x": [2]}),
    ],
)
def test_a_change_has_one_key_however_often_it_is_told(
    name: str, before: dict[str, object], after: dict[str, object]
) -> None:
    def key(thing: dict[str, object], event_id: str) -> str:
        return webhook.parse(msgspec.json.encode(samples.event(name, thing, event_id=event_id))).change_key

    assert key(before, "one") == key(before, "two")
    assert key(before, "one") != key(after, "one")


def test_a_dispute_is_told_of_its_payment_and_bears_its_own_id() -> None:
    dispute = {
        "id": "d1",
        "state": "EVIDENCE_REQUIRED",
        "amount_money": {"amount": 500, "currency": "USD"},
        "disputed_payment": {"payment_id": "p1"},
    }
    event = webhook.parse(msgspec.json.encode(samples.event("dispute", dispute, "dispute.created")))
    assert event.movement is not None
    assert (event.movement.id, event.movement.parent, event.movement.state) == ("p1", "d1", "returned")


def test_an_object_of_another_kind_has_one_change_key_however_it_is_written() -> None:
    """The search is spaced otherwise than a webhook."""
    spaced = b'{"event_id":"e1","type":"a","data":{"id":"d","object":{"invoice": { "id": "d", "x": [1] }}}}'
    turned = b'{"event_id":"e2","type":"a","data":{"id":"d","object":{"invoice":{"x":[1],"id":"d"}}}}'
    assert webhook.parse(spaced).change_key == webhook.parse(turned).change_key


def test_events_that_hold_nothing_are_not_held_to_tell_of_one_change() -> None:
    one, two = (webhook.parse(b'{"event_id":"%b","type":"a","data":{"id":"d"}}' % each) for each in (b"e1", b"e2"))
    assert one.change_key != two.change_key


@pytest.mark.parametrize(("location", "is_believed"), [("LMAIN", True), ("LHIS", False), (None, True)])
def test_our_key_counts_only_at_our_location(location: str | None, *, is_believed: bool) -> None:
    """The application's other sellers can write what they like beside what they take themselves."""
    for name, thing in (("payment", samples.payment()), ("refund", samples.refund())):
        body = msgspec.json.encode(samples.event(name, thing | {"location_id": location}, f"{name}.updated"))
        movement = accepted(header(body), body=body).movement
        assert movement is not None
        assert bool(movement.reference) is is_believed, name
