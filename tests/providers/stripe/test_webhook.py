"""Stripe's webhooks: only Stripe's bytes, only lately signed, and read to the last field or not at all."""

import hmac
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stripe import WebhookSignature

from tallystick.errors import Misconfigured
from tallystick.providers.stripe import webhook
from tallystick.providers.stripe.adapter import Stripe
from tallystick.providers.stripe.objects import Unreadable
from tallystick.providers.words import Event, Forged
from tallystick.secret import Secret
from tests.providers.stripe import samples

SECRET = "whsec_test"
SIGNED_AT = 1_700_000_000
AT = datetime.fromtimestamp(SIGNED_AT, UTC)
VECTOR_BODY = b'{"id":"evt_1","object":"event"}'
VECTOR = "t=1700000000,v1=4c15fb2a43f93ef61eaa3e0893866d57cad9cad4223242cfb96f362480cb4021"
TOLERANCE = timedelta(seconds=300)
BODY = msgspec.json.encode(samples.event(samples.payout(status="failed")))


def signature(body: bytes, secret: str = SECRET, at: int = SIGNED_AT) -> str:
    return hmac.digest(secret.encode(), b"%d.%b" % (at, body), "sha256").hex()


def header(body: bytes = BODY, secret: str = SECRET, at: int = SIGNED_AT) -> tuple[str, str]:
    return ("Stripe-Signature", f"t={at},v1={signature(body, secret, at)}")


def endpoint(*secrets: str) -> Stripe:
    return samples.adapter("http://127.0.0.1:1", webhook_secrets=tuple(Secret(each) for each in secrets))


def forged(
    *headers: tuple[str, str], body: bytes = BODY, now: datetime = AT, secrets: tuple[str, ...] = (SECRET,)
) -> str:
    found = endpoint(*secrets).receive(headers, body, now=now)
    assert isinstance(found, Forged)
    for each in secrets:
        assert each not in found.message
    return found.code


def accepted(
    *headers: tuple[str, str], body: bytes = BODY, now: datetime = AT, secrets: tuple[str, ...] = (SECRET,)
) -> Event:
    found = endpoint(*secrets).receive(headers, body, now=now)
    assert not isinstance(found, Forged), found
    (event,) = found
    return event


def test_the_official_vector_verifies() -> None:
    """docs/providers.md 7."""
    headers = [("stripe-signature", VECTOR)]
    secrets = [Secret(SECRET)]
    assert webhook.verify(headers, VECTOR_BODY, secrets=secrets, now=AT, tolerance=TOLERANCE) is None


def test_the_official_package_signs_what_we_accept() -> None:
    made = WebhookSignature.generate_signature_header(BODY.decode(), SECRET, SIGNED_AT)
    assert accepted(("Stripe-Signature", made)).dedup_key == "evt_1"


def test_a_payout_that_failed_is_told_whole() -> None:
    event = accepted(header())
    assert (event.provider, event.type, event.object_id) == ("stripe", "payout.failed", "po_1")
    assert event.change_key == "payout.failed:po_1:failed"
    assert event.body == BODY
    assert event.movement is not None
    assert (event.movement.state, event.movement.reference) == ("failed", samples.REFERENCE)
    assert event.movement.amount_micros == 12_340_000


@pytest.mark.parametrize("position", [0, 1, len(BODY) // 2, len(BODY) - 1])
@pytest.mark.parametrize("bit", [0, 3, 7])
def test_one_bit_of_the_body_forges_it(position: int, bit: int) -> None:
    flipped = bytearray(BODY)
    flipped[position] ^= 1 << bit
    assert forged(header(), body=bytes(flipped)) == "signature_wrong"


@given(st.text(min_size=1, max_size=200), st.binary(max_size=2_000))
def test_a_signature_of_any_secret_is_the_standard_librarys(secret: str, body: bytes) -> None:
    """Keys longer than a block of the hash are hashed first; a mistake there would lock those endpoints out."""
    expected = hmac.digest(secret.encode("utf-8", "replace"), b"1700000000." + body, "sha256").hex()
    assert webhook._signature(Secret(secret.encode("utf-8", "replace").decode()), "1700000000", body) == expected


@given(
    st.text("0123456789 ²x", min_size=10, max_size=10) | st.just("1700000000"),
    st.text("0123456789abcdef", min_size=64, max_size=64)
    | st.text("af09, =tv1é²_", min_size=64, max_size=64)
    | st.just("0" * 50 + ",t=1700000000 "),
)
def test_an_ordinary_header_is_read_as_any_other_is(time: str, signature: str) -> None:
    """A scheme that is passed over makes it one that is not ordinary, and changes nothing else."""
    header = f"t={time},v1={signature}"
    assert webhook._parsed(header) == webhook._parsed(f"{header},v0=00")


@pytest.mark.parametrize("indent", [0, 2])
def test_a_guess_at_what_an_event_is_about_changes_nothing_but_the_time(indent: int) -> None:
    """However it is spaced and ordered: one that is guessed wrong is read step by step."""
    thing = {"id": "pi_1", "amount": 1, "currency": "eur", "status": "succeeded", "created": SIGNED_AT}
    event = {"id": "evt_1", "type": "payment_intent.succeeded", "created": SIGNED_AT}
    things: list[dict[str, Any]] = [{"object": "payment_intent"} | thing, thing | {"object": "payment_intent"}]
    events = [event | {"data": {"object": thing}} for thing in things]
    events += [{"data": {"object": things[0]}} | event, {"x": "a" * 500} | events[0]]
    bodies = [msgspec.json.format(msgspec.json.encode(event), indent=indent) for event in events]
    told = [msgspec.structs.replace(webhook.parse(body), body=b"") for body in bodies]
    assert told == [told[0]] * len(told)
    assert told[0].movement is not None


PAYMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "of a connected account": {"account": "acct_1"},
    "in a currency that is none": {"currency": "xxx"},
    "in capitals": {"currency": "EUR"},
    "of an amount beyond all bounds": {"amount": 10**18},
    "without an id": {"id": ""},
    "of another id": {"id": "pi/1"},
    "of an odd account": {"account": "a/b"},
    "of an odd event": {"event_id": "evt 1"},
    "without a type": {"type": ""},
    "of a type that cannot be stored": {"type": "a\0b"},
    "with a word that cannot be stored": {"status": "a\0b"},
    "of no time": {"created": 10**15},
    "of another kind": {"object": "charge"},
}


@pytest.mark.parametrize("name", PAYMENTS)
def test_a_payment_read_in_one_go_is_what_it_is_step_by_step(name: str) -> None:
    about = dict(PAYMENTS[name])
    thing = {
        "id": "pi_1",
        "object": "payment_intent",
        "amount": 4_999,
        "currency": "eur",
        "status": "succeeded",
        "created": SIGNED_AT,
        "latest_charge": "ch_1",
        "metadata": {"tally_key": "k"},
    }
    event = {"id": about.pop("event_id", "evt_1"), "type": about.pop("type", "payment_intent.succeeded")}
    event |= {"created": SIGNED_AT, "account": about.pop("account", None), "data": {"object": thing | about}}
    body = msgspec.json.encode(event)
    assert read(webhook.parse, body) == read(webhook._parse_any, body)


def read(how: Callable[[bytes], Event], body: bytes) -> Event | str:
    try:
        return how(body)
    except Unreadable as error:
        return str(error)


@given(position=st.integers(0, 63), other=st.sampled_from("0123456789abcdef"))
def test_one_digit_of_the_signature_forges_it(position: int, other: str) -> None:
    right = signature(BODY)
    wrong = right[:position] + other + right[position + 1 :]
    if wrong != right:
        assert forged(("Stripe-Signature", f"t={SIGNED_AT},v1={wrong}")) == "signature_wrong"


def test_another_time_than_the_signed_one_forges_it() -> None:
    assert forged(("Stripe-Signature", f"t={SIGNED_AT + 1},v1={signature(BODY)}")) == "signature_wrong"


@pytest.mark.parametrize(
    ("away", "code"),
    [(300, None), (301, "timestamp_stale"), (86_400, "timestamp_stale"), (-300, None), (-301, "timestamp_future")],
)
def test_the_tolerance_holds_in_both_directions(away: int, code: str | None) -> None:
    """The official package lets a time in the future pass."""
    found = endpoint(SECRET).receive([header()], BODY, now=AT + timedelta(seconds=away))
    assert (found.code if isinstance(found, Forged) else None) == code


def test_a_valid_signature_of_another_endpoint_is_wrong() -> None:
    assert forged(header(secret="whsec_other")) == "signature_wrong"


@pytest.mark.parametrize("secrets", [("whsec_old", "whsec_new"), ("whsec_new", "whsec_old")])
@pytest.mark.parametrize("signer", ["whsec_old", "whsec_new"])
def test_while_a_secret_is_rolled_both_are_good(secrets: tuple[str, ...], signer: str) -> None:
    assert accepted(header(secret=signer), secrets=secrets).dedup_key == "evt_1"


def test_one_good_signature_among_several_is_enough() -> None:
    value = f"t={SIGNED_AT},v1={'0' * 64},v0={signature(BODY)},v1={signature(BODY)}"
    assert accepted(("STRIPE-SIGNATURE", value)).dedup_key == "evt_1"


def test_another_scheme_alone_is_not_enough() -> None:
    assert forged(("Stripe-Signature", f"t={SIGNED_AT},v0={signature(BODY)}")) == "signature_malformed"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "t=",
        "v1=00",
        f"t={SIGNED_AT}",
        f"t=x,v1={'0' * 64}",
        f"t=-1,v1={'0' * 64}",
        f"t=١٧٠٠٠٠٠٠٠٠,v1={'0' * 64}",  # noqa: RUF001
        f"t={SIGNED_AT},t={SIGNED_AT},v1={'0' * 64}",
        f"t={'1' * 5000},v1={'0' * 64}",
        f"t={SIGNED_AT}" + f",v1={'0' * 64}" * 17,
    ],
)
def test_a_header_of_another_shape_is_malformed(value: str) -> None:
    assert forged(("Stripe-Signature", value)) == "signature_malformed"


def test_a_signature_outside_ascii_is_wrong_and_breaks_nothing() -> None:
    assert forged(("Stripe-Signature", f"t={SIGNED_AT},v1=é\udcff")) == "signature_wrong"


def test_a_header_of_absurd_length_is_not_read() -> None:
    """Nobody needs a key for one of 63 KB: to read its 12,500 parts took the process for 7 ms."""
    padded = f"t={SIGNED_AT},v1={signature(BODY)},v0="
    accepted(("Stripe-Signature", padded.ljust(4_096, "0")))
    assert forged(("Stripe-Signature", padded.ljust(4_097, "0"))) == "signature_malformed"


def test_without_a_header_it_is_missing() -> None:
    assert forged(("content-type", "application/json")) == "signature_missing"


def test_two_headers_are_ambiguous_even_when_both_are_right() -> None:
    """A proxy and we could each look at another one."""
    assert forged(header(), header()) == "signature_ambiguous"


@pytest.mark.parametrize("secrets", [("",), ("  ",), ("\n",), (SECRET, "")])
def test_an_empty_secret_is_a_wrong_setting(secrets: tuple[str, ...]) -> None:
    """With it anybody can sign."""
    with pytest.raises(Misconfigured, match="webhook secret"):
        endpoint(*secrets)


def test_without_a_secret_nothing_is_believed() -> None:
    assert forged(header(secret=""), secrets=()) == "no_secret"


def test_a_body_of_a_megabyte_is_the_largest() -> None:
    largest = BODY + b" " * (1024 * 1024 - len(BODY))
    assert accepted(header(largest), body=largest).dedup_key == "evt_1"
    assert forged(header(largest + b" "), body=largest + b" ") == "too_large"


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
        msgspec.json.encode(samples.event(samples.payout(), id="")),
        msgspec.json.encode(samples.event(samples.payout(), id=7)),
        msgspec.json.encode(samples.event(samples.payout(amount="1234"))),
        msgspec.json.encode(samples.event(samples.payout(amount=12.5))),
        msgspec.json.encode(samples.event(samples.payout(currency="xyz"))),
        msgspec.json.encode(samples.event(samples.payout(status=None))),
        msgspec.json.encode(samples.event(samples.payout(), created=10**30)),
        msgspec.json.encode(samples.event(samples.payout(), type="a\0b")),
        msgspec.json.encode(samples.event(samples.payout(status="a\0b"))),
        b"[" * 100_000,
        b'{"id":"evt_1","type":"a","created":1,"data":{"object":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_002,
        b'{"id":"evt_1","type":"a","created":1,"data":{"object":{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}}}",
    ],
)
def test_what_is_signed_and_cannot_be_read_is_not_passed_over(body: bytes) -> None:
    assert forged(header(body), body=body) == "unreadable"


def test_an_event_of_another_kind_is_told_without_a_movement() -> None:
    body = msgspec.json.encode(samples.event({"object": "balance", "available": []}, "balance.available"))
    event = accepted(header(body), body=body)
    assert (event.type, event.object_id, event.movement) == ("balance.available", "", None)


@pytest.mark.parametrize(
    ("changes", "micros"),
    [
        ({"amount_received": 1000}, 10_000_000),
        ({"status": "requires_capture", "amount_received": 0}, 12_340_000),
    ],
)
def test_a_payment_is_what_was_received_of_it(changes: dict[str, Any], micros: int) -> None:
    """Captured in part by somebody in the dashboard, it paid the whole order."""
    body = msgspec.json.encode(samples.event(samples.payment_intent(**changes)))
    event = accepted(header(body), body=body)
    assert event.movement is not None
    assert event.movement.amount_micros == micros


def test_a_dispute_is_told_of_its_payment_and_bears_its_own_id() -> None:
    dispute = {"id": "dp_1", "object": "dispute", "amount": 500, "currency": "usd", "status": "needs_response"}
    body = msgspec.json.encode(samples.event(dispute | {"created": 1_794_700_000, "payment_intent": "pi_1"}))
    event = accepted(header(body), body=body)
    assert event.movement is not None
    assert (event.movement.id, event.movement.parent, event.movement.state) == ("pi_1", "dp_1", "returned")


def test_an_object_of_a_connected_account_carries_its_account() -> None:
    """Its id alone cannot be asked for."""
    body = msgspec.json.encode(samples.event(samples.payout(), account="acct_1"))
    event = accepted(header(body), body=body)
    assert event.object_id == "acct_1/po_1"
    assert event.movement is not None
    assert event.movement.id == "acct_1/po_1"


def test_two_events_about_one_change_share_its_key() -> None:
    one, two = (
        webhook.parse(msgspec.json.encode(samples.event(samples.payout(), id=each))) for each in ("evt_1", "evt_2")
    )
    assert one.dedup_key != two.dedup_key
    assert one.change_key == two.change_key


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (samples.payout(status="paid"), samples.payout(status="failed")),
        (samples.refund(status="pending"), samples.refund(status="succeeded")),
        (samples.transfer(amount_reversed=0), samples.transfer(amount_reversed=10)),
        (samples.payment_intent(latest_charge="ch_1"), samples.payment_intent(latest_charge="ch_2")),
        (
            {"object": "charge", "id": "ch_1", "status": "succeeded", "amount_refunded": 100},
            {"object": "charge", "id": "ch_1", "status": "succeeded", "amount_refunded": 200},
        ),
        ({"object": "balance", "available": [{"amount": 1}]}, {"object": "balance", "available": [{"amount": 2}]}),
    ],
)
def test_two_changes_of_one_object_do_not(before: dict[str, Any], after: dict[str, Any]) -> None:
    one, two = (webhook.parse(msgspec.json.encode(samples.event(each, "x.updated"))) for each in (before, after))
    assert one.change_key != two.change_key


def test_an_object_of_another_kind_has_one_change_key_however_it_is_written() -> None:
    """The list of events is spaced otherwise than a webhook."""
    spaced = b'{"id":"evt_1","type":"a","created":1,"data":{"object":{ "object": "charge", "id": "ch_1", "x": [1] }}}'
    turned = b'{"id":"evt_2","type":"a","created":2,"data":{"object":{"x":[1],"id":"ch_1","object":"charge"}}}'
    assert webhook.parse(spaced).change_key == webhook.parse(turned).change_key


def test_verification_takes_less_than_20_microseconds() -> None:
    """The fastest of many rounds: what others do on the machine is not ours."""
    body = BODY + b" " * (1024 - len(BODY) % 1024)
    headers = [("content-type", "application/json"), header(body)]
    secrets = [Secret(SECRET)]
    rounds = []
    for _ in range(30):
        began = time.process_time_ns()
        for _ in range(200):
            webhook.verify(headers, body, secrets=secrets, now=AT, tolerance=TOLERANCE)
        rounds.append((time.process_time_ns() - began) / 200)
    assert webhook.verify(headers, body, secrets=secrets, now=AT, tolerance=TOLERANCE) is None
    assert min(rounds) < 20_000


@pytest.mark.parametrize(
    ("thing", "account", "is_believed"),
    [
        (samples.payment_intent(), "", True),
        (samples.payment_intent(), "acct_1", False),
        (samples.refund(), "acct_1", False),
        (samples.transfer(), "acct_1", False),
        (samples.payout(), "acct_1", True),
        (samples.payout(), "acct_2", False),
        (samples.payout(), "", True),
    ],
)
def test_our_key_counts_only_where_we_write(thing: dict[str, Any], account: str, *, is_believed: bool) -> None:
    """Whoever owns a connected account writes what he likes beside what he moves himself."""
    marked = thing | {"metadata": {**thing.get("metadata", {}), "tally_mark": "installation/order/ord_1"}}
    body = msgspec.json.encode(samples.event(marked, "x.updated", **({"account": account} if account else {})))
    stripe = samples.adapter("http://127.0.0.1:1", webhook_secrets=(Secret(SECRET),), connected_accounts=("acct_1",))
    told = stripe.receive([header(body)], body, now=AT)
    assert not isinstance(told, Forged)
    movement = told[0].movement
    assert movement is not None
    assert movement.elsewhere == account
    assert movement.reference == (samples.REFERENCE if is_believed else "")
    assert bool(movement.mark) is is_believed
