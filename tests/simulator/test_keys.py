"""The idempotency layer by itself, under a rule with a horizon and one without."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tallystick.simulator.books import Books
from tallystick.simulator.dialect import Call, KeyRule, Reply
from tallystick.simulator.keys import Keys
from tallystick.simulator.stripe.api import SWITCHES, Stripe

NOW = datetime(2026, 1, 2, tzinfo=UTC)
GOOD = Reply(200, b'{"id":"x"}')
RULE = KeyRule(
    horizon_seconds=100,
    stores=lambda reply: reply.status != 429,
    replay=lambda reply: msgspec.structs.replace(reply, headers=(("replayed", "true"),)),
    in_flight=lambda _call: Reply(409),
    mismatch=lambda _call: Reply(400),
)


class Plain(Stripe):
    """A dialect of which only the rule counts."""

    rule = RULE

    def keys(self, books: Books) -> KeyRule:  # noqa: ARG002  the rule is fixed
        return self.rule


def call(key: str | None = "k", fingerprint: bytes = b"f", scope: str = "") -> Call:
    return Call("transfer", lambda _books, _now: GOOD, key, scope, fingerprint)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(Books(tmp_path / "books", SWITCHES))


@pytest.fixture
def dialect() -> Plain:
    return Plain()


def test_an_unknown_key_is_for_execution(keys: Keys, dialect: Plain) -> None:
    assert keys.answer(dialect, call(), NOW) is None


def test_a_stored_reply_is_replayed_until_the_horizon(keys: Keys, dialect: Plain) -> None:
    keys.remember(dialect, call(), GOOD, NOW)
    again = keys.answer(dialect, call(), NOW + timedelta(seconds=99))
    assert again == Reply(200, GOOD.body, (("replayed", "true"),))
    assert keys.answer(dialect, call(), NOW + timedelta(seconds=100)) is None
    assert keys.counts() == {}


def test_without_a_horizon_a_key_is_remembered_for_ever(keys: Keys, dialect: Plain) -> None:
    dialect.rule = msgspec.structs.replace(RULE, horizon_seconds=None)
    keys.remember(dialect, call(), GOOD, NOW)
    assert keys.answer(dialect, call(), NOW + timedelta(days=10_000)) is not None


def test_a_stored_500_is_replayed_as_one(keys: Keys, dialect: Plain) -> None:
    keys.remember(dialect, call(), Reply(500, b"trouble"), NOW)
    again = keys.answer(dialect, call(), NOW)
    assert again is not None
    assert (again.status, again.body) == (500, b"trouble")


def test_what_the_rule_does_not_store_leaves_the_key_free(keys: Keys, dialect: Plain) -> None:
    keys.remember(dialect, call(), Reply(429), NOW)
    assert keys.answer(dialect, call(), NOW) is None


def test_another_fingerprint_is_a_mismatch_or_the_first_answer(keys: Keys, dialect: Plain) -> None:
    keys.remember(dialect, call(), GOOD, NOW)
    other = call(fingerprint=b"g")
    assert keys.answer(dialect, other, NOW) == Reply(400)
    dialect.rule = msgspec.structs.replace(RULE, mismatch=None)
    first = keys.answer(dialect, other, NOW)
    assert first is not None
    assert first.body == GOOD.body


def test_a_twin_of_a_running_call_is_in_flight(keys: Keys, dialect: Plain) -> None:
    begun = keys.begin(dialect, call())
    assert keys.answer(dialect, call(), NOW) == Reply(409)
    assert keys.answer(dialect, call("other"), NOW) is None
    keys.end(begun)
    assert keys.answer(dialect, call(), NOW) is None


def test_a_key_belongs_to_its_scope(keys: Keys, dialect: Plain) -> None:
    keys.remember(dialect, call(scope="a"), GOOD, NOW)
    assert keys.answer(dialect, call(scope="b"), NOW) is None
    dialect.rule = msgspec.structs.replace(RULE, scope=lambda _call: "a")
    assert keys.answer(dialect, call(scope="b"), NOW) is not None


def test_a_forgotten_key_executes_again(keys: Keys, dialect: Plain) -> None:
    keys.remember(dialect, call(), GOOD, NOW)
    keys.forget(dialect, call())
    assert keys.answer(dialect, call(), NOW) is None


def test_no_key_no_memory(keys: Keys, dialect: Plain) -> None:
    keys.remember(dialect, call(None), GOOD, NOW)
    keys.begin(dialect, call(None))
    assert keys.answer(dialect, call(None), NOW) is None
    assert keys.counts() == {}
