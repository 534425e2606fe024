import re
import uuid
from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.keys import derived as keys

values = st.one_of(st.text(), st.integers())
fields = st.dictionaries(st.text(min_size=1), values, min_size=1, max_size=6)
digests = st.binary(min_size=32, max_size=32)

SETTLEMENT: dict[str, Any] = {
    "tenant": "amber",
    "currency": "USD",
    "provider": "stripe",
    "attribution_id": "attr_1",
    "squad_id": "squad_7",
    "net_micros": 12_340_000,
}
CHARGE: dict[str, Any] = {
    "tenant": "amber",
    "currency": "EUR",
    "provider": "adyen",
    "order_id": "order_1",
    "reservation_token": "res_9",
    "attempt": 1,
    "amount_micros": 5_000_000,
}
REFUND: dict[str, Any] = {
    "tenant": "amber",
    "currency": "USD",
    "provider": "square",
    "payment_intent_id": "pi_3",
}
TASK: dict[str, Any] = {
    "tenant": "amber",
    "currency": "GBP",
    "provider": "wise",
    "task_id": "task_1",
    "operation": "withdraw",
}
DERIVATIONS = [
    pytest.param(keys.settlement_key, SETTLEMENT, id="settlement"),
    pytest.param(keys.charge_key, CHARGE, id="charge"),
    pytest.param(keys.refund_key, REFUND, id="refund"),
    pytest.param(keys.task_key, TASK, id="task"),
]


@pytest.mark.parametrize(
    ("derive", "facts", "expected"),
    [
        (keys.settlement_key, SETTLEMENT, "9770db33387ac9c63b055af79f92b949c42e6bc14a5363847f3a576d951578e9"),
        (
            keys.settlement_key,
            SETTLEMENT | {"generation": 1},
            "140207fa24109c0953eeffca81f99fb99dd51813facd2e112fc94eda6bb27194",
        ),
        (keys.charge_key, CHARGE, "93e02526d60ee22580369516b219808087fea049c434978fca566f330b5384e7"),
        (keys.refund_key, REFUND, "4238db00bd0bb6353d66937d3a15484e4488953b2824534ba0fe7eccdd351e77"),
        (keys.task_key, TASK, "7f86b175ae5994724dda1b2e4ac0e205d6f386a1f0b6280a4b77c6b612eddf10"),
    ],
)
def test_a_key_never_changes(derive: Callable[..., bytes], facts: dict[str, Any], expected: str) -> None:
    """A release that derives another key pays every unfinished payment a second time."""
    assert keys.hex64(derive(**facts)) == expected


def test_the_encoding_never_changes() -> None:
    """Spelled out by hand here, so that a changed encoding cannot change its own proof."""
    encoded = (
        b"tallystick/key/1"
        b"\x00\x00\x00\x04demo"
        b"\x00\x00\x00\x01a"
        b"i\x00\x00\x00\x02-7"
        b"\x00\x00\x00\x04name"
        b"s\x00\x00\x00\x03\xc3\xa9x"
    )
    assert keys.digest("demo", name="\u00e9x", a=-7) == sha256(encoded).digest()


def test_the_forms_of_a_key_never_change() -> None:
    """The provider compares them, not our digest."""
    key = keys.settlement_key(**SETTLEMENT)
    assert keys.square45(key) == "l3DbMzh6ycY7BVr3n5K5ScQua8FKU2OEfzpXbZUVeOk"
    assert keys.uuid_form(key) == "9770db33-387a-49c6-bb05-5af79f92b949"


@pytest.mark.parametrize(
    ("tenant", "key", "expected"),
    [
        ("amber", "order-1", "ba988f114b2ff0750b67f2342e0a40f7"),
        ("b\u00e4r", "k" * 255, "4e3dce16051ec026743c16341d83b0c7"),
    ],
)
def test_an_operation_id_never_changes(tenant: str, key: str, expected: str) -> None:
    """It names rows already stored: another one would run every replay again."""
    assert keys.operation_id(tenant, key).hex() == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": "ab", "b": "c"}, {"a": "a", "b": "bc"}),
        ({"a": "1"}, {"a": 1}),
        ({"a": "-1"}, {"a": -1}),
        ({"a": ""}, {"b": ""}),
        ({"ab": "c"}, {"a": "bc"}),
        ({"a": "x", "b": "y"}, {"a": "y", "b": "x"}),
        ({"a": "x"}, {"a": "x", "b": ""}),
        ({"a": "\u00e9"}, {"a": "e\u0301"}),
        ({"a": "x"}, {"a": "x\x00"}),
        ({"a": "x"}, {"a": "X"}),
    ],
)
def test_fields_that_differ_give_keys_that_differ(one: dict[str, str | int], other: dict[str, str | int]) -> None:
    """Two payments with one key are one payment: the second person is not paid."""
    assert keys.digest("p", **one) != keys.digest("p", **other)


@given(fields, fields)
def test_keys_are_equal_only_for_equal_fields(one: dict[str, str | int], other: dict[str, str | int]) -> None:
    """The same danger, for fields nobody thought of."""
    assert (keys.digest("p", **one) == keys.digest("p", **other)) == (one == other)


@given(fields, st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(given_fields: dict[str, str | int], random: Random) -> None:
    """A refactoring that reorders a call would pay again."""
    names = list(given_fields)
    random.shuffle(names)
    assert keys.digest("p", **{name: given_fields[name] for name in names}) == keys.digest("p", **given_fields)


def test_the_purpose_is_part_of_the_key() -> None:
    """A refund under the key of its charge would be answered with the charge."""
    assert keys.digest("charge", id="1") != keys.digest("refund", id="1")
    assert keys.digest("ab", c="1") != keys.digest("a", bc="1")


@pytest.mark.parametrize("value", [True, 1.0, None, b"1", ("a",)])
def test_a_field_is_text_or_a_whole_number(value: int) -> None:
    """True and 1 would share a key, and a float prints differently on another host."""
    with pytest.raises(TypeError, match="net_micros of a key is str or int"):
        keys.digest("p", net_micros=value)


def test_a_lone_surrogate_is_refused_by_name() -> None:
    """Replaced by a question mark, different texts would share a key."""
    with pytest.raises(ValueError, match="squad_id of a key has a lone surrogate at 1"):
        keys.digest("p", squad_id="a\ud800")
    with pytest.raises(ValueError, match="surrogates not allowed"):
        keys.operation_id("amber", "\ud800")


def test_a_key_covers_at_least_one_field() -> None:
    """Otherwise all payments of a purpose are the same payment."""
    with pytest.raises(ValueError, match="at least one field"):
        keys.digest("settlement")


@pytest.mark.parametrize(("derive", "facts"), DERIVATIONS)
def test_every_field_is_part_of_the_key(derive: Callable[..., bytes], facts: dict[str, Any]) -> None:
    """A field left out merges two payments into one."""
    plain = derive(**facts)
    for name, value in facts.items():
        changed = "SEK" if name == "currency" else value + 1 if isinstance(value, int) else value + "x"
        assert derive(**facts | {name: changed}) != plain, name


@pytest.mark.parametrize(
    ("derive", "facts", "name"),
    [
        (keys.settlement_key, SETTLEMENT, "generation"),
        (keys.refund_key, REFUND, "generation"),
        (keys.task_key, TASK, "generation"),
        (keys.task_key, TASK, "round_number"),
    ],
)
def test_a_new_generation_or_round_is_a_new_key(derive: Callable[..., bytes], facts: dict[str, Any], name: str) -> None:
    """Stripe replays the stored failure for the old key: a second attempt could never succeed."""
    assert derive(**facts) == derive(**facts, **{name: 0})
    assert derive(**facts) != derive(**facts, **{name: 1})


@pytest.mark.parametrize(("derive", "facts"), DERIVATIONS)
@pytest.mark.parametrize("currency", ["usd", "US", "USDT", "", "U$D", "\u00dcSD"])
def test_a_currency_has_one_spelling_in_a_key(
    derive: Callable[..., bytes], facts: dict[str, Any], currency: str
) -> None:
    """Stripe writes usd: taken from its answer, the same payment would get a second key."""
    with pytest.raises(ValueError, match="not a currency code in capitals"):
        derive(**facts | {"currency": currency})


def test_the_key_of_an_old_payment_survives_its_currency() -> None:
    """After a restore all keys are recomputed, also those of a currency withdrawn since."""
    assert len(keys.settlement_key(**SETTLEMENT | {"currency": "BGN"})) == 32


@given(digests)
def test_every_form_fits_its_provider(key: bytes) -> None:
    """A key that is cut off or refused protects nothing."""
    assert re.fullmatch(r"[0-9a-f]{64}", keys.hex64(key))
    assert re.fullmatch(r"[0-9A-Za-z_-]{1,45}", keys.square45(key))
    form = keys.uuid_form(key)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", form)
    assert uuid.UUID(form).version == 4
    assert uuid.UUID(form).variant == uuid.RFC_4122


@given(digests, digests)
def test_the_long_forms_lose_nothing(one: bytes, other: bytes) -> None:
    """Two digests in one form would be two payments under one key."""
    assert (keys.hex64(one) == keys.hex64(other)) == (one == other)
    assert (keys.square45(one) == keys.square45(other)) == (one == other)


@pytest.mark.parametrize("form", [keys.hex64, keys.square45, keys.uuid_form])
@pytest.mark.parametrize("key", [b"", b"x" * 16, b"x" * 33])
def test_only_a_whole_digest_has_forms(form: Callable[[bytes], str], key: bytes) -> None:
    """An operation id in its place would pass, and match nothing later."""
    with pytest.raises(ValueError, match="32 bytes"):
        form(key)


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_operations_of_different_tenants_or_keys_never_meet(
    tenant: str, key: str, other_tenant: str, other_key: str
) -> None:
    """One tenant would be answered with another's transaction."""
    same = (tenant, key) == (other_tenant, other_key)
    assert (keys.operation_id(tenant, key) == keys.operation_id(other_tenant, other_key)) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a:1:b", "c"), ("a", "1:b:1:c")),
        (("", "a"), ("a", "")),
        (("1:", "a"), ("1", ":a")),
    ],
)
def test_a_border_between_tenant_and_key_cannot_be_moved(one: tuple[str, str], other: tuple[str, str]) -> None:
    """A tenant who chooses his keys could reach into another's."""
    assert keys.operation_id(*one) != keys.operation_id(*other)
    assert len(keys.operation_id(*one)) == 16


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("order-1", None),
        ("!", None),
        ("~", None),
        ("k" * 255, None),
        (None, "idempotency_key_missing"),
        ("", "idempotency_key_missing"),
        ("k" * 256, "idempotency_key_too_long"),
        (" ", "idempotency_key_invalid"),
        ("a b", "idempotency_key_invalid"),
        ("order-1 ", "idempotency_key_invalid"),
        ("order-1\n", "idempotency_key_invalid"),
        ("a\tb", "idempotency_key_invalid"),
        ("a\x00b", "idempotency_key_invalid"),
        ("a\x7f", "idempotency_key_invalid"),
        ("\u00e9", "idempotency_key_invalid"),
        ("\ud800", "idempotency_key_invalid"),
        ("\u00e9" * 300, "idempotency_key_invalid"),
        (7, "idempotency_key_invalid"),
        (False, "idempotency_key_invalid"),
        (b"order-1", "idempotency_key_invalid"),
        ([], "idempotency_key_invalid"),
    ],
)
def test_an_idempotency_key_is_short_visible_ascii(key: object, fault: str | None) -> None:
    """A key that changes on its way, trimmed or re-encoded, makes a retry a second payment."""
    assert keys.idempotency_key_fault(key) == fault


@given(st.characters())
def test_no_other_character_is_taken_for_visible(character: str) -> None:
    """str.isprintable alone would also pass spaces of its own and whole alphabets."""
    assert (keys.idempotency_key_fault(character) is None) == ("!" <= character <= "~")


@given(key=st.binary(min_size=32, max_size=32))
def test_a_key_lies_between_the_bounds_of_each_of_its_forms(key: bytes) -> None:
    for reference in (*keys.forms_of(key), keys.square45(key)[:40]):
        bounds = keys.reference_bounds(reference)
        assert bounds is not None
        assert bounds[0] <= key <= bounds[1]
        assert keys.is_reference(key, reference)


@given(key=st.binary(min_size=32, max_size=32))
def test_a_uuid_without_its_hyphens_could_be_ours_and_is_no_form_of_it(key: bytes) -> None:
    """What a list shows so is kept for a person, and explains nothing."""
    bare = keys.uuid_form(key).replace("-", "")
    bounds = keys.reference_bounds(bare)
    assert bounds is not None
    assert bounds[0] <= key <= bounds[1]
    assert not keys.is_reference(key, bare)


@pytest.mark.parametrize("other", ["", "x" * 64, "!" * 40, "!" * 43, "ab " * 21 + "a", "or_1", "-" * 36, "ü" * 40])
def test_what_is_no_form_of_a_key_has_no_bounds(other: str) -> None:
    """A decoder that passes over what it does not know would leave bounds between which every key lies."""
    assert keys.reference_bounds(other) is None
