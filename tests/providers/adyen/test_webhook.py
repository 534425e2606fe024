"""Adyen's webhooks: every item is signed or none is believed, and each says the same whenever it comes."""

import hmac
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tallystick.errors import Misconfigured
from tallystick.providers.adyen import objects, webhook
from tallystick.providers.adyen.adapter import Adyen
from tallystick.providers.adyen.webhook import is_signed
from tallystick.providers.words import Event, Forged
from tallystick.secret import Secret
from tallystick.webhooks import receiver
from tests.providers.adyen.examples import (
    HMAC_KEY,
    OTHER_HMAC_KEY,
    REFERENCE,
    TRANSFERRED,
    account,
    adyen,
    changed,
    encoded,
)

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
# docs/providers.md 7.
STANDARD_SIGNATURE = "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="
PLATFORM_BODY = b'{"type":"balancePlatform.transfer.updated"}'
PLATFORM_SIGNATURE = "NPQSldEOV8cUKvoLOeSjl06WsFmbtPhDcX/iOcIyXvA="
ITEM: dict[str, Any] = {
    "pspReference": "7914073381342284",
    "merchantAccountCode": "TestMerchant",
    "merchantReference": "TestPayment-1407325143704",
    "amount": {"value": 1130, "currency": "EUR"},
    "eventCode": "AUTHORISATION",
    "success": "true",
    "eventDate": "2026-11-15T11:59:00+01:00",
    "additionalData": {"hmacSignature": STANDARD_SIGNATURE},
}


def hmac_of(message: bytes, key: str = HMAC_KEY) -> str:
    return b64encode(hmac.digest(bytes.fromhex(key), message, "sha256")).decode()


def signed(item: dict[str, Any], key: str = HMAC_KEY) -> dict[str, Any]:
    names = ("pspReference", "originalReference", "merchantAccountCode", "merchantReference")
    amount = item.get("amount", {})
    fields = [item.get(name, "") for name in names] + [str(amount.get("value", "")), amount.get("currency", "")]
    message = ":".join([*fields, item["eventCode"], item["success"]])
    return item | {"additionalData": {"hmacSignature": hmac_of(message.encode(), key)}}


def standard(*items: dict[str, Any]) -> bytes:
    return encoded({"live": "false", "notificationItems": [{"NotificationRequestItem": item} for item in items]})


def received(body: bytes, headers: list[tuple[str, str]] | None = None, *keys: str) -> tuple[Event, ...]:
    came = adyen("http://127.0.0.1:1", *(keys or (HMAC_KEY,))).receive(headers or [], body, now=NOW)
    assert not isinstance(came, Forged)
    return came


def forged(body: bytes, headers: list[tuple[str, str]] | None = None, *keys: str) -> str:
    came = adyen("http://127.0.0.1:1", *(keys or (HMAC_KEY,))).receive(headers or [], body, now=NOW)
    assert isinstance(came, Forged)
    assert not any(key in came.message for key in (HMAC_KEY, OTHER_HMAC_KEY))
    return came.code


def platform(body: bytes, key: str = HMAC_KEY) -> list[tuple[str, str]]:
    return [("Protocol", "HmacSHA256"), ("HmacSignature", hmac_of(body, key))]


def transfer_body(kind: str = "balancePlatform.transfer.updated", **fields: Any) -> bytes:
    data = changed(TRANSFERRED, **fields)
    return encoded({"type": kind, "data": data, "environment": "test", "timestamp": "2026-11-15T12:00:02Z"})


def test_the_official_vectors_verify() -> None:
    (event,) = received(standard(ITEM))
    assert (event.type, event.object_id) == ("AUTHORISATION", "7914073381342284")
    assert event.dedup_key == "AUTHORISATION:7914073381342284:true"
    assert is_signed(PLATFORM_BODY, PLATFORM_SIGNATURE, [Secret(HMAC_KEY)])
    # Signed, and yet no transfer in it.
    assert forged(PLATFORM_BODY, [("HmacSignature", PLATFORM_SIGNATURE)]) == "unreadable"


def test_an_authorisation_is_a_charge_that_moved() -> None:
    (event,) = received(standard(ITEM))
    assert event.movement is not None
    assert (event.movement.purpose, event.movement.state, event.movement.amount_micros) == (
        "charge",
        "moved",
        11_300_000,
    )
    assert event.movement.reference == "TestPayment-1407325143704"
    assert event.occurred_at == datetime(2026, 11, 15, 10, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("code", "success", "state"),
    [
        ("AUTHORISATION", "false", "failed"),
        ("REFUND", "true", "moved"),
        ("REFUND", "false", "failed"),
        ("REFUND_FAILED", "true", "failed"),
        ("REFUNDED_REVERSED", "true", "returned"),
    ],
)
def test_each_event_code_says_what_the_money_does(code: str, success: str, state: str) -> None:
    item = signed(ITEM | {"eventCode": code, "success": success, "originalReference": "PSP0"})
    (event,) = received(standard(item))
    assert event.movement is not None
    assert (event.movement.state, event.movement.parent) == (state, "PSP0")
    assert event.dedup_key == f"{code}:7914073381342284:{success}"


@pytest.mark.parametrize(
    "code", ["CHARGEBACK", "SECOND_CHARGEBACK", "CAPTURE_FAILED", "CANCELLATION", "TECHNICAL_CANCEL"]
)
def test_what_takes_a_payment_back_is_told_of_the_payment(code: str) -> None:
    """An order that is PAID and whose capture failed was nobody's business. Two of them are two."""
    (event,) = received(standard(signed(ITEM | {"eventCode": code, "originalReference": "PSP0"})))
    told = event.movement
    assert told is not None
    assert (told.purpose, told.id, told.state, told.parent) == ("charge", "PSP0", "returned", "7914073381342284")


@pytest.mark.parametrize("code", ["REPORT_AVAILABLE", "SOMETHING_NEW"])
def test_an_unknown_event_is_an_event_about_no_money_of_ours(code: str) -> None:
    (event,) = received(standard(signed(ITEM | {"eventCode": code})))
    assert event.type == code
    assert event.movement is None


def test_an_item_of_another_merchant_account_moves_nothing_of_ours() -> None:
    (event,) = received(standard(signed(ITEM | {"merchantAccountCode": "Elsewhere"})))
    assert event.movement is None


def test_every_item_is_verified_not_only_the_first() -> None:
    second = signed(ITEM | {"pspReference": "8888"})
    assert [event.object_id for event in received(standard(ITEM, second))] == ["7914073381342284", "8888"]
    for forgery in (second | {"success": "false"}, signed(second, OTHER_HMAC_KEY), changed(second, additionalData={})):
        assert forged(standard(ITEM, forgery)) in {"signature_wrong", "unsigned"}
        assert forged(standard(forgery, ITEM)) in {"signature_wrong", "unsigned"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pspReference", "7914073381342285"),
        ("originalReference", "X"),
        ("merchantAccountCode", "TestMerchanu"),
        ("merchantReference", "TestPayment-1407325143705"),
        ("amount", {"value": 1131, "currency": "EUR"}),
        ("amount", {"value": 1130, "currency": "USD"}),
        ("eventCode", "REFUND"),
        ("success", "false"),
    ],
)
def test_a_change_of_any_signed_field_is_a_forgery(field: str, value: object) -> None:
    assert forged(standard(ITEM | {field: value})) == "signature_wrong"


def test_success_is_a_string() -> None:
    assert forged(standard(ITEM | {"success": True})) == "unsigned"


def test_every_flipped_bit_of_a_signature_is_a_forgery() -> None:
    raw = b64decode(STANDARD_SIGNATURE)
    for place in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[place // 8] ^= 1 << place % 8
        item = ITEM | {"additionalData": {"hmacSignature": b64encode(bytes(flipped)).decode()}}
        assert forged(standard(item)) == "signature_wrong"


def test_a_reference_with_a_colon_is_believed_of_our_own_account_alone() -> None:
    """Joined without escaping, "A" + "b:c" and "A:b" + "c" have one signature."""
    (event,) = received(standard(signed(ITEM | {"merchantReference": "order:7"})))
    assert event.movement is not None
    assert event.movement.reference == "order:7"
    shifted = signed(ITEM | {"merchantReference": "order:7"}) | {
        "merchantAccountCode": "TestMerchant:order",
        "merchantReference": "7",
    }
    assert forged(standard(shifted)) == "ambiguous_fields"
    elsewhere = signed(ITEM | {"merchantAccountCode": "Elsewhere", "merchantReference": "order:7"})
    assert forged(standard(elsewhere)) == "ambiguous_fields"


@pytest.mark.parametrize("field", ["pspReference", "originalReference", "eventCode", "success"])
def test_adyens_own_words_hold_no_colon(field: str) -> None:
    assert forged(standard(signed(ITEM | {field: "a:b"}))) == "ambiguous_fields"


def test_a_transfer_webhook_is_read_from_signed_bytes() -> None:
    body = transfer_body(status="booked", sequenceNumber=3)
    (event,) = received(body, platform(body))
    assert event.movement is not None
    assert (event.movement.id, event.movement.state, event.movement.status) == ("3JERI6", "moved", "booked")
    assert (event.movement.reference, event.movement.amount_micros) == (REFERENCE, 11_300_000)
    assert event.dedup_key == "balancePlatform.transfer.updated:3JERI6:3"
    assert event.body == body


def test_two_deliveries_have_one_dedup_key_and_two_steps_have_two() -> None:
    first, second = transfer_body(sequenceNumber=1), transfer_body(sequenceNumber=2, status="authorised")
    keys = [received(body, platform(body))[0].dedup_key for body in (first, first, second)]
    assert keys[0] == keys[1] != keys[2]
    # Without a number the moment of the update tells them apart.
    earlier, later = (transfer_body(sequenceNumber=None, updatedAt=f"2026-11-15T12:00:0{n}Z") for n in (1, 2))
    assert received(earlier, platform(earlier))[0].dedup_key != received(later, platform(later))[0].dedup_key


def test_a_transfer_of_another_account_or_into_ours_is_no_movement_of_ours() -> None:
    for fields in ({"direction": "incoming"}, {"balanceAccount": {"id": "BA2"}}):
        body = transfer_body(**fields)
        assert received(body, platform(body))[0].movement is None


def test_an_unknown_status_is_moving() -> None:
    body = transfer_body(status="somethingNew")
    movement = received(body, platform(body))[0].movement
    assert movement is not None
    assert (movement.state, movement.status) == ("moving", "somethingNew")


def test_an_unknown_platform_event_is_an_event() -> None:
    body = encoded({"type": "balancePlatform.report.created", "data": {"id": "R1"}})
    (event,) = received(body, platform(body))
    assert (event.type, event.object_id, event.movement) == ("balancePlatform.report.created", "R1", None)


def test_the_platform_signature_covers_every_byte() -> None:
    body = transfer_body()
    headers = platform(body)
    assert forged(body + b" ", headers) == "signature_wrong"
    for place in range(0, len(body), 7):
        flipped = bytearray(body)
        flipped[place] ^= 1
        assert forged(bytes(flipped), headers) == "signature_wrong"


def test_a_signature_of_another_endpoint_is_a_forgery() -> None:
    body = transfer_body()
    assert forged(body, platform(body, OTHER_HMAC_KEY)) == "signature_wrong"
    assert forged(standard(signed(ITEM, OTHER_HMAC_KEY))) == "signature_wrong"


def test_old_and_new_key_are_believed_together() -> None:
    body = transfer_body()
    for keys in ((HMAC_KEY, OTHER_HMAC_KEY), (OTHER_HMAC_KEY, HMAC_KEY)):
        assert received(standard(ITEM, signed(ITEM | {"pspReference": "9"}, OTHER_HMAC_KEY)), None, *keys)
        assert received(body, platform(body), *keys)


def test_two_signatures_are_one_too_many() -> None:
    body = transfer_body()
    (_, right) = platform(body)
    for second in (right, ("hmacsignature", "wrong")):
        assert forged(body, [right, second]) == "signature_ambiguous"


def test_a_body_over_one_megabyte_is_not_even_looked_at() -> None:
    body = encoded({"type": "x", "data": {"padding": "x" * 1024 * 1024}})
    assert forged(body, platform(body)) == "too_large"


def test_without_a_secret_nothing_is_believed() -> None:
    body = transfer_body()
    assert adyen().receive(platform(body), body, now=NOW) == Forged(
        "no_secret", "No webhook secret is configured for Adyen."
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"pspReference": "79\x0014"},
        {"pspReference": "79 14"},
        {"pspReference": "79\x0014", "eventCode": "REPORT_AVAILABLE"},
        {"eventCode": "REP\x00ORT"},
        {"success": "tr\x00ue"},
    ],
)
def test_an_item_that_no_row_can_hold_is_not_believed(fields: dict[str, Any]) -> None:
    assert forged(standard(signed(ITEM | fields))) == "unreadable"


def test_a_report_is_named_by_its_file() -> None:
    (event,) = received(standard(signed(ITEM | {"eventCode": "REPORT_AVAILABLE", "pspReference": "batch 1.csv"})))
    assert event.object_id == "batch 1.csv"


def test_a_reference_that_no_row_can_hold_is_none_of_ours() -> None:
    (event,) = received(standard(signed(ITEM | {"merchantReference": "a\x00b", "originalReference": "c\x00d"})))
    assert event.movement is not None
    assert (event.movement.reference, event.movement.parent) == ("", "")
    body = transfer_body(reference="a\x00b")
    (event,) = received(body, platform(body))
    assert event.movement is not None
    assert event.movement.reference == ""


@pytest.mark.parametrize("fields", [{"id": "3JE\x00RI6"}, {"id": ""}, {"id": "../x"}])
def test_a_transfer_without_an_id_of_adyens_is_not_believed(fields: dict[str, Any]) -> None:
    body = transfer_body(**fields)
    assert forged(body, platform(body)) == "unreadable"


def test_another_object_with_an_odd_id_is_an_event_about_no_object() -> None:
    body = encoded({"type": "balancePlatform.other", "data": {"id": "a\x00b"}})
    (event,) = received(body, platform(body))
    assert event.object_id == ""
    odd = encoded({"type": "balance\x00Platform", "data": {}})
    assert forged(odd, platform(odd)) == "unreadable"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b"[]",
        b"<html>",
        b'{"notificationItems":[]}',
        b"\xff",
        # Deeper than the decoder goes; whoever sends it needs no key.
        b"[" * 100_000,
        b'{"notificationItems":' + b"[" * 100_000,
        b'{"notificationItems":[{"NotificationRequestItem":{"a":' + b"[" * 900 + b"]" * 900 + b"}}]}",
    ],
)
def test_a_body_that_is_no_notification_is_a_forgery(body: bytes) -> None:
    """Unsigned it is a stranger's, who is held for what he costs; signed it is the provider's."""
    assert forged(body) == "unsigned"
    assert "unsigned" not in receiver._CODES
    assert forged(body, platform(body)) == "unreadable"


@pytest.mark.parametrize("days", [-3650, -1, 1, 3650])
def test_the_clock_decides_nothing_because_no_time_is_signed(days: int) -> None:
    """Adyen retries for 30 days: an old webhook is as good as a new one, and the dedup key stops a replay."""
    provider = adyen("http://127.0.0.1:1", HMAC_KEY)
    assert not isinstance(provider.receive([], standard(ITEM), now=NOW + timedelta(days=days)), Forged)


def test_a_secret_that_is_no_key_is_a_misconfiguration_that_does_not_show_it() -> None:
    with pytest.raises(Misconfigured) as raised:
        Adyen(account("http://127.0.0.1:1", "not-hexadecimal"))
    assert "not-hexadecimal" not in str(raised.value)


def test_the_first_bad_item_ends_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever signs nothing must not be able to have a hundred signatures checked."""
    checked = 0
    original = webhook.is_signed

    def counted(*arguments: Any) -> bool:
        nonlocal checked
        checked += 1
        return original(*arguments)

    monkeypatch.setattr(webhook, "is_signed", counted)
    unsigned = {**ITEM, "additionalData": {"hmacSignature": "x"}}
    assert forged(standard(*[unsigned] * webhook.MOST_ITEMS)) == "signature_wrong"
    assert checked == 1
    assert forged(standard(signed(ITEM), unsigned, signed(ITEM))) == "signature_wrong"
    assert checked == 3


@pytest.mark.parametrize("name", ["NotificationRequestItem", "NotificationRequestIte\\u006d"])
def test_more_items_than_adyen_sends_are_not_looked_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of them took a tenth of a second of everybody's time. A name may be escaped."""
    few = standard(*[signed(ITEM)] * webhook.MOST_ITEMS).replace(b"NotificationRequestItem", name.encode())
    assert len(received(few)) == webhook.MOST_ITEMS
    tiny = b'{"%s":1}' % name.encode()
    many = b'{"notificationItems":[' + b",".join([tiny] * (webhook.MOST_ITEMS + 1)) + b"]}"
    looked_at: list[type] = []

    def read(body: bytes, form: type) -> object:
        looked_at.append(form)
        return objects.read(body, form)

    monkeypatch.setattr(webhook, "read", read)
    assert forged(many) == "too_many_items"
    # Where the names are plain, not even their list is read; an escaped one shows itself only there.
    assert looked_at == ([webhook._Standard] if "\\" in name else [])
    looked_at.clear()
    large = b'{"notificationItems":[' + b",".join([tiny] * 20_000) + b"]}"
    assert forged(large) == "too_large"
    assert looked_at == []
