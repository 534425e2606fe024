"""Wise's webhooks: signed by a key of Wise's over the raw bytes, or not believed."""

from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS, PKCS1v15

from tallystick.errors import Misconfigured
from tallystick.providers.wise.adapter import Wise
from tallystick.providers.words import Event, Forged
from tests.providers.wise.examples import account, wise

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
# Wise's own sample (docs/providers.md 7): its sandbox key, a body, its signature.
SANDBOX_KEY = """
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAwpb91cEYuyJNQepZAVfP
ZIlPZfNUefH+n6w9SW3fykqKu938cR7WadQv87oF2VuT+fDt7kqeRziTmPSUhqPU
ys/V2Q1rlfJuXbE+Gga37t7zwd0egQ+KyOEHQOpcTwKmtZ81ieGHynAQzsn1We3j
wt760MsCPJ7GMT141ByQM+yW1Bx+4SG3IGjXWyqOWrcXsxAvIXkpUD/jK/L958Cg
nZEgz0BSEh0QxYLITnW1lLokSx/dTianWPFEhMC9BgijempgNXHNfcVirg1lPSyg
z7KqoKUN0oHqWLr2U1A+7kqrl6O2nx3CKs1bj1hToT1+p4kcMoHXA7kA+VBLUpEs
VwIDAQAB
"""
BODY = (
    b'{"data":{"resource":{"id":49983981,"profile_id":16055450,"account_id":14124090,"type":"transfer"},'
    b'"current_state":"incoming_payment_waiting","previous_state":null,"occurred_at":"2021-08-23T10:12:50Z"},'
    b'"subscription_id":"90aa8e14-4ef1-4a56-861c-f3c9cde097ea","event_type":"transfers#state-change",'
    b'"schema_version":"2.0.0","sent_at":"2021-08-23T10:12:50Z"}'
)
SIGNATURE = (
    "wKcKCYXAzxNgiu7xmoDm943NUni7Rz33QN8JkEA9dWSGebgndonabgSj18Y4C08OrwVmueGsED2s00M7DtJVcYKOS1i3G4TMVx+mgM3aL9djMBkQ"
    "tiYNBFUd6wrPI7ZUNHv/TrlKSjTMc+6JFvUvJ7owY3z85e3I4jLRLJowMFvO8kvCJ60+1pY9wDwZvtZ//WS93LrwGjk9Dvwzpmu0w+P4J75tETT5"
    "qC3Uv0y5G2yO8SEoO3yNP/tg/BOli02niHb53vEOUWUb9bly6thnfMoXoiV/osoGxgF20R58RlvkAmezyyl1Sv542TfS2DpiwVnmjjjkCyXeSUcK"
    "ookYLQ=="
)
SIGNED = [("X-Signature-SHA256", SIGNATURE)]


def sampled() -> Wise:
    """The profile of Wise's own sample."""
    return Wise(msgspec.structs.replace(account("http://127.0.0.1:1", SANDBOX_KEY), profile_id="16055450"))


@lru_cache
def private_key(number: int) -> rsa.RSAPrivateKey:
    del number
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form).decode()


def signed(body: bytes, number: int = 0) -> list[tuple[str, str]]:
    return [("x-signature-sha256", b64encode(private_key(number).sign(body, PKCS1v15(), hashes.SHA256())).decode())]


def state_change(**fields: Any) -> bytes:
    data = {
        "resource": {"id": 7, "profile_id": 102, "account_id": 1, "type": "transfer"},
        "current_state": "processing",
        "previous_state": "incoming_payment_waiting",
        "occurred_at": "2026-11-15T11:59:00Z",
    }
    body = {"data": data | fields, "event_type": "transfers#state-change", "sent_at": "2026-11-15T12:00:00Z"}
    return msgspec.json.encode(body)


def received(body: bytes, headers: list[tuple[str, str]], *keys: str) -> Event:
    came = wise("http://127.0.0.1:1", *(keys or (pem(private_key(0)),))).receive(headers, body, now=NOW)
    assert not isinstance(came, Forged)
    (event,) = came
    return event


def forged(body: bytes, headers: list[tuple[str, str]], *keys: str) -> str:
    came = wise("http://127.0.0.1:1", *(keys or (pem(private_key(0)),))).receive(headers, body, now=NOW)
    assert isinstance(came, Forged)
    return came.code


def test_wises_own_sample_verifies() -> None:
    came = sampled().receive(SIGNED, BODY, now=NOW)
    assert not isinstance(came, Forged)
    (event,) = came
    assert (event.type, event.object_id) == ("transfers#state-change", "49983981")
    assert event.dedup_key == "transfers#state-change:49983981:incoming_payment_waiting:2021-08-23T10:12:50Z"
    assert event.occurred_at == datetime(2021, 8, 23, 10, 12, 50, tzinfo=UTC)
    assert event.body == BODY


def test_a_state_change_names_no_amount_so_its_transfer_is_to_be_fetched() -> None:
    event = received(state_change(), signed(state_change()))
    assert (event.movement, event.object_id, event.object_purpose) == (None, "7", "transfer")


def test_what_is_about_no_transfer_is_not_fetched_as_one() -> None:
    for body in (
        state_change().replace(b"transfers#state-change", b"balances#update"),
        state_change(resource={"profile_id": 102}),
    ):
        assert received(body, signed(body)).object_purpose is None


def test_a_redelivery_has_the_same_dedup_key() -> None:
    body = state_change()
    again = msgspec.json.encode(msgspec.json.decode(body) | {"sent_at": "2026-11-16T00:00:00Z"})
    first = received(body, [*signed(body), ("X-Delivery-Id", "a")])
    second = received(again, [*signed(again), ("X-Delivery-Id", "b")])
    assert first.dedup_key == second.dedup_key
    assert first.change_key == second.change_key


@pytest.mark.parametrize("fields", [{"current_state": "cancelled"}, {"occurred_at": "2026-11-15T11:59:01Z"}])
def test_another_change_has_another_dedup_key(fields: dict[str, str]) -> None:
    """States may roll back: the same state at another moment is another change."""
    one, two = state_change(), state_change(**fields)
    assert received(one, signed(one)).dedup_key != received(two, signed(two)).dedup_key


def test_an_unknown_event_is_an_event() -> None:
    bodies = [msgspec.json.encode({"data": {"n": n}, "event_type": "something#new"}) for n in (1, 2)]
    events = [received(body, signed(body)) for body in bodies]
    assert [event.type for event in events] == ["something#new"] * 2
    assert events[0].dedup_key != events[1].dedup_key
    assert events[0].movement is None


def test_two_changes_of_one_moment_without_a_state_are_two() -> None:
    """Such as two movements of one balance in one second."""
    bodies = [
        msgspec.json.encode(
            {
                "data": {"resource": {"id": 5, "profile_id": 102}, "amount": n, "occurred_at": "2026-11-15T11:59:00Z"},
                "event_type": "balances#update",
            }
        )
        for n in (10, 99)
    ]
    one, two = (received(body, signed(body)) for body in bodies)
    assert one.dedup_key != two.dedup_key
    assert one.object_id == two.object_id == "5"


def test_a_header_that_nobody_signed_changes_nothing() -> None:
    body = state_change()
    assert received(body, [*signed(body), ("X-Test-Notification", "true")]) == received(body, signed(body))


@pytest.mark.parametrize("profile", [103, "103", 0, "", -102])
def test_a_genuine_webhook_of_another_profile_is_not_ours(profile: int | str) -> None:
    body = state_change(resource={"id": 7, "profile_id": profile, "type": "transfer"})
    assert forged(body, signed(body)) == "other_account"


def payout_failure(**fields: Any) -> bytes:
    data = {"transfer_id": 7, "profile_id": 102, "failure_reason_code": "WRONG_ID_NUMBER", **fields}
    return msgspec.json.encode({"data": data, "event_type": "transfers#payout-failure"})


def test_a_payout_that_failed_names_its_transfer_beside_a_resource() -> None:
    body = payout_failure()
    event = received(body, signed(body))
    assert (event.type, event.object_id, event.object_purpose) == ("transfers#payout-failure", "7", "transfer")
    other = payout_failure(failure_reason_code="ACCOUNT_CLOSED")
    assert received(other, signed(other)).dedup_key != event.dedup_key


@pytest.mark.parametrize(
    "data",
    [
        {"transfer_id": 7, "profile_id": 103},
        {"resource": {"id": 7, "profile_id": 102}, "profile_id": 103},
        {"resource": {"id": 7, "profile_id": 103}, "profile_id": 102},
        {"resource": {"type": "profile", "id": 103}},
    ],
)
@pytest.mark.parametrize("kind", ["transfers#payout-failure", "transfers#refund", "balances#update", "profiles#new"])
def test_whatever_its_type_a_webhook_that_names_another_profile_is_not_ours(kind: str, data: dict[str, Any]) -> None:
    body = msgspec.json.encode({"data": data, "event_type": kind})
    assert forged(body, signed(body)) == "other_account"


@pytest.mark.parametrize("resource", [{"id": 7, "profile_id": "102"}, {"id": 7, "profile_id": None}, {"id": 7}])
def test_a_webhook_that_names_our_profile_or_none_is_ours(resource: dict[str, Any]) -> None:
    body = state_change(resource=resource)
    assert received(body, signed(body)).object_id == "7"


def test_every_byte_is_signed() -> None:
    assert forged(BODY + b" ", SIGNED, SANDBOX_KEY) == "signature_wrong"
    for place in range(0, len(BODY), 5):
        flipped = bytearray(BODY)
        flipped[place] ^= 1
        assert forged(bytes(flipped), SIGNED, SANDBOX_KEY) == "signature_wrong"
    for place in range(0, 256, 5):
        signature = bytearray(b64decode(SIGNATURE))
        signature[place] ^= 1
        headers = [("X-Signature-SHA256", b64encode(bytes(signature)).decode())]
        assert forged(BODY, headers, SANDBOX_KEY) == "signature_wrong"


@pytest.mark.parametrize(
    "signature", ["", "=", "not base64!", SIGNATURE[:-4], SIGNATURE + "AAAA", f" {SIGNATURE}", "é"]
)
def test_a_signature_that_is_none_is_a_forgery(signature: str) -> None:
    assert forged(BODY, [("X-Signature-SHA256", signature)], SANDBOX_KEY) == "signature_wrong"


def test_the_older_header_and_other_paddings_are_not_believed() -> None:
    body = state_change()
    assert forged(body, [("X-Signature", signed(body)[0][1])]) == "signature_missing"
    assert forged(body, []) == "signature_missing"
    pss = private_key(0).sign(body, PSS(MGF1(hashes.SHA256()), 32), hashes.SHA256())
    assert forged(body, [("X-Signature-SHA256", b64encode(pss).decode())]) == "signature_wrong"
    other = private_key(0).sign(body, PKCS1v15(), hashes.SHA512())
    assert forged(body, [("X-Signature-SHA256", b64encode(other).decode())]) == "signature_wrong"


def test_a_signature_of_another_endpoint_is_a_forgery() -> None:
    body = state_change()
    assert forged(body, signed(body, 1)) == "signature_wrong"


def test_old_and_new_key_are_believed_together() -> None:
    body = state_change()
    keys = (pem(private_key(0)), pem(private_key(1)))
    assert received(body, signed(body, 0), *keys) == received(body, signed(body, 1), *keys)


def test_two_signatures_are_one_too_many() -> None:
    assert forged(BODY, [*SIGNED, *SIGNED], SANDBOX_KEY) == "signature_ambiguous"
    assert forged(BODY, [*SIGNED, ("x-signature-sha256", "")], SANDBOX_KEY) == "signature_ambiguous"


def test_a_body_over_one_megabyte_is_not_even_looked_at() -> None:
    body = state_change(padding="x" * 1024 * 1024)
    assert forged(body, signed(body)) == "too_large"


def test_without_a_key_nothing_is_believed() -> None:
    assert wise().receive(SIGNED, BODY, now=NOW) == Forged("no_secret", "No webhook key is configured for Wise.")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b"<html>",
        b'{"event_type":1,"data":{}}',
        b'{"event_type":"x","data":[]}',
        b"[" * 100_000,
        b'{"event_type":"x","data":{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    ],
)
def test_a_signed_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    assert forged(body, signed(body)) == "unreadable"


@pytest.mark.parametrize("days", [-3650, -1, 1, 3650])
def test_the_clock_decides_nothing_because_no_time_is_signed_apart(days: int) -> None:
    provider = sampled()
    assert not isinstance(provider.receive(SIGNED, BODY, now=NOW + timedelta(days=days)), Forged)


@pytest.mark.parametrize(
    "text", ["", "AAAA", "not a key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"]
)
def test_a_key_that_is_none_is_a_misconfiguration(text: str) -> None:
    with pytest.raises(Misconfigured):
        wise("http://127.0.0.1:1", text)


def test_a_key_of_another_kind_is_a_misconfiguration() -> None:
    with pytest.raises(Misconfigured):
        wise("http://127.0.0.1:1", pem(ec.generate_private_key(ec.SECP256R1())))
