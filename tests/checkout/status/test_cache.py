"""Memory of answers: what is never given from it."""

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tallystick.checkout.order.rules import Status
from tallystick.checkout.payment.rules import PaymentView
from tallystick.checkout.status.cache import Cache
from tallystick.checkout.status.rules import OrderStatus, order_status
from tallystick.checkout.status.store import EVERYTHING, OrderName, named, payloads, signature

PLACE: OrderName = (1, UUID(int=1))
OTHER: OrderName = (2, UUID(int=1))
OURS = signature()
FAILED = PaymentView(status="FAILED", payment_intent_id=None, attempts=1, reason="card_declined")


def seen(status: Status = "PENDING", payment: PaymentView | None = None) -> OrderStatus:
    return order_status(
        id_="or_1", status=status, payment=payment, refund=None, changed_at=datetime(2026, 1, 31, tzinfo=UTC)
    )


def trusted(*, most: int = 10) -> Cache:
    cache = Cache(most=most, age_seconds=1.0)
    cache.trust(100.0)
    return cache


def keep(cache: Cache, place: OrderName = PLACE, found: OrderStatus | None = None, now: float = 0.0) -> None:
    cache.put(place, cache.ticket(place, now), found or seen(), now)


def test_what_was_read_is_given_while_it_is_young() -> None:
    cache = trusted()
    keep(cache)
    assert cache.get(PLACE, 0.99) == seen()
    assert cache.get(PLACE, 1.0) is None


def test_its_age_counts_from_before_it_was_read() -> None:
    cache = trusted()
    cache.put(PLACE, cache.ticket(PLACE, 0.0), seen(), 0.9)
    assert cache.get(PLACE, 0.99) == seen()
    assert cache.get(PLACE, 1.1) is None


def test_a_change_is_forgotten() -> None:
    cache = trusted()
    keep(cache)
    cache.drop(PLACE)
    assert cache.get(PLACE, 0.0) is None


def test_what_was_read_before_a_change_is_not_kept_after_it() -> None:
    cache = trusted()
    ticket = cache.ticket(PLACE, 0.0)
    cache.drop(PLACE)
    cache.put(PLACE, ticket, seen(), 0.1)
    assert cache.get(PLACE, 0.1) is None
    # Nor after everything was forgotten.
    ticket = cache.ticket(PLACE, 0.2)
    cache.drop_all()
    cache.put(PLACE, ticket, seen(), 0.3)
    assert cache.get(PLACE, 0.3) is None


def test_nothing_is_given_or_kept_while_nobody_listens() -> None:
    cache = Cache(most=10, age_seconds=1.0)
    keep(cache)
    assert cache.get(PLACE, 0.0) is None
    cache.trust(5.0)
    assert cache.get(PLACE, 0.0) is None
    keep(cache)
    assert cache.get(PLACE, 0.0) == seen()
    cache.distrust()
    assert cache.get(PLACE, 0.0) is None
    cache.trust(5.0)
    assert cache.get(PLACE, 0.0) is None


def test_trust_ends_by_itself() -> None:
    cache = Cache(most=10, age_seconds=100.0)
    cache.trust(5.0)
    keep(cache)
    assert cache.get(PLACE, 4.9) == seen()
    assert cache.get(PLACE, 5.0) is None


def test_a_read_that_began_before_anybody_listened_is_not_kept() -> None:
    cache = trusted()
    ticket = cache.ticket(PLACE, 0.0)
    cache.distrust()
    cache.trust(5.0)
    cache.put(PLACE, ticket, seen(), 0.1)
    assert cache.get(PLACE, 0.1) is None


def test_a_failure_is_not_kept_and_replaces_what_was() -> None:
    cache = trusted()
    keep(cache)
    keep(cache, found=seen(payment=FAILED))
    assert cache.get(PLACE, 0.0) is None


def test_another_tenants_order_of_the_same_id_is_another() -> None:
    cache = trusted()
    keep(cache)
    assert cache.get(OTHER, 0.0) is None


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    cache = trusted(most=3)
    places = [(1, UUID(int=number)) for number in range(5)]
    for place in places:
        keep(cache, place)
    assert [cache.get(place, 0.0) is not None for place in places] == [False, False, True, True, True]


PLACES = st.lists(st.tuples(st.integers(1, 2**31 - 1), st.uuids()), unique=True, max_size=600)


@given(PLACES)
def test_announcements_name_every_order_within_what_postgresql_takes(places: list[OrderName]) -> None:
    announced = payloads(places, by=OURS, most=32)
    assert all(len(payload) < 8_000 and payload.startswith(OURS) for payload in announced)
    assert [place for payload in announced for place in named(payload) or []] == places


def test_more_than_can_be_named_is_everything() -> None:
    places = [(1, UUID(int=number)) for number in range(1_000)]
    assert payloads(places, by=OURS, most=2) == [EVERYTHING]
    assert named(EVERYTHING) is None


def test_what_nobody_can_read_is_everything() -> None:
    for payload in ("", "1", "1:xyz", "a:b", "1:2:3", "*", "1:" + "0" * 31):
        assert named(payload) is None, payload
