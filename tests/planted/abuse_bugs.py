"""Bugs in who may take how much: see `bugs`."""

from collections.abc import Mapping
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tallystick.database.fair_slots import FairSlots
from tallystick.database.pool import Database
from tallystick.errors import RateExceeded
from tallystick.http import access
from tallystick.http.body_space import BodySpace
from tallystick.http.guesses import Guesses
from tallystick.http.health import Vitals
from tallystick.http.http1 import protocol
from tallystick.http.http1.protocol import BoundedProtocol
from tallystick.http.refusals import Refusals
from tallystick.http.resource import Resource, _failure
from tallystick.http.share import shed
from tallystick.http.tenant_rate import TenantRate
from tallystick.webhooks.receiver import WebhookReceiver, _later
from tests.planted.bug import Bug

CROWD: Final = "tests/http/test_crowd.py::"
GUESSES: Final = "tests/http/test_guesses.py::"
REFUSALS: Final = "tests/http/test_refusals.py::"
RATE: Final = "tests/http/test_tenant_rate.py::"


def room_by_promise() -> None:
    """A declared length takes up room before a byte of it came."""
    original = WebhookReceiver.expect

    def expect(self: Any, arrival: Any, length: int, _came: int) -> bool:
        return original(self, arrival, length, length)

    cast("Any", WebhookReceiver).expect = expect


def time_begins_anew_with_each_byte() -> None:
    """Whoever sends a byte now and then may take for ever."""
    original = BoundedProtocol.data_received

    def data_received(self: Any, data: bytes) -> None:
        original(self, data)
        if not self.is_whole:
            self.deadline = self.loop.time() + self._crowd.limits.body_seconds

    cast("Any", BoundedProtocol).data_received = data_received


def whoever_is_idlest_gives_way() -> None:
    """Of all, whoever holds how much."""

    def of_all(holders: Any, excess: int, weight: Any) -> Any:
        class Same:
            def __init__(self, holder: Any) -> None:
                self.holder, self.address, self.since = holder, "", holder.since

        return [one.holder for one in shed([Same(one) for one in holders], excess, lambda one: weight(one.holder))]

    from tallystick.http import crowd  # noqa: PLC0415 - where the name is taken to
    from tallystick.webhooks import receiver as webhook  # noqa: PLC0415 - where the name is taken to

    cast("Any", crowd).shed = cast("Any", webhook).shed = of_all


def health_behind_the_reads() -> None:
    """Look-ups of keys, and the look of /readyz, wait with all reads."""
    cast("Any", Database).aside = lambda self, _name: self.owning()


def guesses_uncounted() -> None:
    """An address may try as many keys as it likes."""
    cast("Any", Guesses).spend = lambda _self, _address, _now: None


def revoked_key_remembered() -> None:
    """Who was known once is known for good."""
    original = access._Known
    cast("Any", access)._Known = lambda found, _until: original(found, float("inf"))


def whoever_reads_may_write() -> None:
    """Any key suffices for a call that writes."""
    del access._ROLES[access.Need.WRITE]


def no_share_of_reads() -> None:
    """One tenant may have every connection for reads."""
    cast("Any", FairSlots)._may_have = lambda _self, _tenant: True


def a_batch_counts_as_one_call() -> None:
    """A thousand operations for the price of one."""
    cast("Any", TenantRate).count_as = lambda _self, _tenant, _count: None


def the_short_way_has_no_rate() -> None:
    """Only what the server's own parser read is counted."""
    original = Resource._answer

    async def serve(self: Any, scope: Any, receive: Any, write: Any) -> None:
        rate, self._doorkeeper.rate = self._doorkeeper.rate, TenantRate(None)
        try:
            write(await original(self, scope, receive))
        finally:
            self._doorkeeper.rate = rate

    cast("Any", Resource).serve = serve


def one_rate_for_all() -> None:
    """A tenant that asks too often has the others refused."""
    original = TenantRate.admit

    def admit(self: Any, tenant: Any) -> None:
        original(self, type(tenant)(0, tenant.name))

    cast("Any", TenantRate).admit = admit


def asked_for_after_it_was_done() -> None:
    """The rate is looked at when the answer is there."""
    original = TenantRate.admit
    answering = Resource._answer

    async def answer(self: Any, scope: Any, receive: Any) -> Any:
        reply = await answering(self, scope, receive)
        if scope["method"] == "GET" and b"authorization" in dict(scope["headers"]):
            known = next(iter(self._doorkeeper._known.values()), None)
            try:
                _ = known and original(self._doorkeeper.rate, known.access.tenant)
            except RateExceeded as error:
                return _failure(error, self._methods["GET"])
        return reply

    cast("Any", TenantRate).admit = lambda _self, _tenant: None
    cast("Any", Resource)._answer = answer


def figures_for_everybody() -> None:
    """Whoever asks for /metrics has all of it written anew."""
    cast("Any", Vitals)._may_write = lambda _self: True


def any_number_of_fields() -> None:
    """A head may have as many fields as fit in its bytes."""
    cast("Any", BoundedProtocol).on_header = HttpToolsProtocol.on_header


def any_number_of_pieces() -> None:
    """A body may come in pieces of one byte."""
    cast("Any", protocol).BYTES_A_PIECE = 1


def any_number_of_requests_ahead() -> None:
    """Whoever sends a packet of requests has all of them taken in."""
    cast("Any", protocol).MOST_AHEAD = 1_000_000


def refused_at_once() -> None:
    """Whoever is refused may ask again at once, as often as he likes."""
    cast("Any", Refusals).wait_seconds = lambda *_: 0.0


def all_of_an_address_wait() -> None:
    """Whoever is refused often has the genuine ones of his address wait with him."""
    original = WebhookReceiver.begin

    def begin(self: Any, arrival: Any, body: bytes, answered: Any) -> Any:
        refusal = original(self, arrival, body, answered)
        # What came at the same time with a good signature is refused with the forged.
        if refusal is None and any(until > 0 for until in self.refusals._paid_until.values()):
            return _later("busy", 1)
        return refusal

    cast("Any", WebhookReceiver).begin = begin


def large_bodies_at_once() -> None:
    """Whoever sends large bodies has them read one after the other, and nobody else has the process meanwhile."""

    async def turn(_self: Any, _tenant: int, _size: int) -> None:
        pass

    cast("Any", BodySpace).turn = turn


ABUSE_BUGS: Final[Mapping[str, Bug]] = {
    "room_by_promise": Bug(room_by_promise, (CROWD + "test_a_promise_of_bytes_takes_up_no_room",)),
    "time_begins_anew_with_each_byte": Bug(
        time_begins_anew_with_each_byte, (CROWD + "test_a_byte_now_and_then_does_not_lengthen_the_time[a head]",)
    ),
    "whoever_is_idlest_gives_way": Bug(
        whoever_is_idlest_gives_way, (CROWD + "test_the_idlest_of_who_has_the_most_makes_room_for_another",)
    ),
    "health_behind_the_reads": Bug(
        health_behind_the_reads, (GUESSES + "test_health_and_known_callers_wait_for_no_guesses",)
    ),
    "guesses_uncounted": Bug(guesses_uncounted, (GUESSES + "test_an_address_may_guess_so_often_and_then_waits",)),
    "revoked_key_remembered": Bug(
        revoked_key_remembered,
        ("tests/http/test_access.py::test_a_revoked_key_works_until_its_memory_ends_and_no_longer",),
    ),
    "whoever_reads_may_write": Bug(
        whoever_reads_may_write,
        tuple(
            f"tests/http/test_access.py::test_only_admins_and_operators_write[{role}-False]"
            for role in ("approver", "viewer", "auditor")
        ),
    ),
    "a_batch_counts_as_one_call": Bug(
        a_batch_counts_as_one_call,
        (
            RATE + "test_a_batch_counts_as_what_is_in_it[/v1/operations/batch]",
            RATE + "test_a_batch_counts_as_what_is_in_it[/v1/settlements/batch]",
            RATE + "test_a_batch_that_must_wait_runs_nothing_and_then_runs_whole",
        ),
    ),
    "the_short_way_has_no_rate": Bug(
        the_short_way_has_no_rate,
        (
            RATE + "test_both_ways_in_count_and_refuse_alike",
            "tests/http/test_call_fuzz.py::test_the_short_way_makes_the_same_call_of_the_same_bytes",
        ),
    ),
    "one_rate_for_all": Bug(one_rate_for_all, (RATE + "test_a_second_s_worth_and_then_as_fast_as_it_grows",)),
    "asked_for_after_it_was_done": Bug(
        asked_for_after_it_was_done, (RATE + "test_what_is_refused_never_reaches_the_database",)
    ),
    "figures_for_everybody": Bug(
        figures_for_everybody, ("tests/http/test_health.py::test_figures_are_not_written_for_everybody_who_asks",)
    ),
    "any_number_of_fields": Bug(
        any_number_of_fields,
        tuple(
            CROWD + f"test_more_parts_than_a_request_has_end_its_connection[fields of a {part}]"
            for part in ("head", "trailer")
        ),
    ),
    "any_number_of_pieces": Bug(
        any_number_of_pieces, (CROWD + "test_more_parts_than_a_request_has_end_its_connection[chunks]",)
    ),
    "any_number_of_requests_ahead": Bug(
        any_number_of_requests_ahead, (CROWD + "test_who_sends_many_requests_ahead_is_cut_off_without_a_word",)
    ),
    "refused_at_once": Bug(refused_at_once, (REFUSALS + "test_who_is_refused_often_waits_for_it[a forged webhook]",)),
    "all_of_an_address_wait": Bug(
        all_of_an_address_wait, (REFUSALS + "test_who_is_refused_often_waits_for_it[a forged webhook]",)
    ),
    "large_bodies_at_once": Bug(
        large_bodies_at_once, (CROWD + "test_after_a_large_body_the_others_have_the_process_for_as_long",)
    ),
    "no_share_of_reads": Bug(no_share_of_reads, ("tests/database/test_fair_slots.py::test_one_tenant_never_has_all",)),
}
