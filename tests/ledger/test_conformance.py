"""What the engine promises, asked of every store it can run on. Each test ends with `verify`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from tallystick.commit.port import LedgerStore, LedgerTransaction
from tallystick.errors import Faulted, TallystickError
from tallystick.keys.derived import operation_id
from tallystick.ledger.account.store import Put
from tallystick.ledger.flow import Engine
from tallystick.ledger.kinds import (
    Fee,
    Hold,
    Kind,
    Operation,
    Payout,
    Post,
    PostLeg,
    Reading,
    Refund,
    Release,
    TopUp,
    Transfer,
)
from tallystick.ledger.outcome import Committed, Duplicate, Outcome, Rejected, Transaction
from tallystick.ledger.rules import Leg
from tallystick.ledger.velocity import VelocityLimit
from tallystick.money.amounts import MAX_MICROS
from tests.ledger import stores
from tests.ledger.stores import Books
from tests.servers import Server

HOUR = 3600


@pytest.fixture(scope="module", params=["embedded18", "postgres15", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def dsn(server: Server) -> str:
    made = server.fresh_database()
    stores.prepare(made)
    return made


@pytest.fixture
async def books(dsn: str) -> AsyncIterator[Books]:
    """`world` is the edge of the ledger, `alice` holds 100 micros, `bob` nothing."""
    async with stores.opened(dsn) as opened:
        await opened.put("world", floor=None)
        await opened.put("alice")
        await opened.put("bob")
        async with opened.engine() as engine:
            await engine.submit(opened.tenant, topup("alice", 100), "given")
        yield opened
        assert await opened.broken() == {}


@pytest.fixture
async def engine(books: Books) -> AsyncIterator[Engine]:
    async with books.engine([TIP, EXPLODE, CHECKS_BADLY, ODDLY, ORPHAN]) as engine:
        yield engine


def topup(account: str, amount: int) -> TopUp:
    return TopUp(account=account, source="world", amount_micros=amount, currency="USD")


def pay(amount: int, debit: str = "alice", credit: str = "bob") -> Transfer:
    return Transfer(debit=debit, credit=credit, amount_micros=amount, currency="USD")


class Tip(Operation, frozen=True, tag_field="kind", tag="tip"):
    giver: str
    taker: str
    amount_micros: int


class Explode(Operation, frozen=True, tag_field="kind", tag="explode"):
    """Raises where it is told to."""

    where: str


class ChecksBadly(Operation, frozen=True, tag_field="kind", tag="checks_badly"):
    pass


class Orphan(Operation, frozen=True, tag_field="kind", tag="orphan"):
    """Claims to finish a transaction that nobody made: only the database can see that."""


class Oddly(Operation, frozen=True, tag_field="kind", tag="oddly"):
    """Names whatever it is told to as an account."""

    name: str | int


def _tip(operation: Tip, _reading: Reading) -> Iterable[Leg]:
    amount = operation.amount_micros
    return Leg(operation.giver, -amount, "USD"), Leg(operation.taker, amount, "USD")


def _explode(operation: Explode, _reading: Reading) -> Iterable[Leg]:
    raise ArithmeticError(operation.where)


def _explode_accounts(operation: Explode, _transactions: Mapping[str, Transaction]) -> Iterable[str]:
    if operation.where == "accounts":
        raise ArithmeticError(operation.where)
    return ("alice",)


def _check_badly(_operation: ChecksBadly) -> Rejected | None:
    raise ArithmeticError


NOBODYS = "tx_" + "0" * 32
TIP = Kind(Tip, accounts=lambda operation, _: (operation.giver, operation.taker), decide=_tip)
EXPLODE = Kind(Explode, accounts=_explode_accounts, decide=_explode)
CHECKS_BADLY = Kind(ChecksBadly, accounts=lambda _o, _t: (), decide=lambda _o, _r: (), check=_check_badly)
ODDLY = Kind(
    Oddly,
    accounts=lambda operation, _: ("alice", operation.name),
    decide=lambda operation, _: (Leg("alice", -1, "USD"), Leg(operation.name, 1, "USD")),
)
ORPHAN = Kind(
    Orphan,
    accounts=lambda _o, _t: ("alice", "bob"),
    decide=lambda _o, _r: (Leg("alice", -1, "USD"), Leg("bob", 1, "USD")),
    closes=lambda _o: NOBODYS,
)


def committed(answer: Outcome | TallystickError) -> Transaction:
    assert isinstance(answer, Committed), answer
    return answer.transaction


def refused(answer: Outcome | TallystickError) -> str:
    assert isinstance(answer, Rejected), answer
    return answer.code


async def test_the_first_call_is_committed_and_survives_a_crash_of_the_server(
    server: Server, books: Books, engine: Engine
) -> None:
    """An answer that a power cut can take back is a lie told to a merchant."""
    first = await engine.submit(books.tenant, pay(30), "k")
    server.stop(immediate=True)
    server.start()
    again = await engine.submit(books.tenant, pay(30), "k")
    assert isinstance(first, Committed)
    assert again == Duplicate(first.body)
    assert (await books.balance("alice"), await books.balance("bob")) == (70, 30)


async def test_a_retry_is_a_duplicate_with_the_identical_bytes_and_leaves_no_trace(
    books: Books, engine: Engine
) -> None:
    """A retry that runs again pays twice; one that answers differently breaks the caller's own dedup."""
    first = await engine.submit(books.tenant, pay(30), "k")
    written = await books.written(books.tenant)
    assert isinstance(first, Committed)
    assert await engine.submit(books.tenant, pay(30), "k") == Duplicate(first.body)
    async with books.engine() as another:
        assert await another.submit(books.tenant, pay(30), "k") == Duplicate(first.body)
    assert await books.written(books.tenant) == written


async def test_another_payload_under_a_used_key_is_refused_naming_exactly_what_differs(
    books: Books, engine: Engine
) -> None:
    """Replaying the first answer would let the caller believe that his second payment was made."""
    await engine.submit(books.tenant, pay(30), "k")
    other = Transfer(debit="alice", credit="bob", amount_micros=31, currency="USD", memo="rent")
    answer = await engine.submit(books.tenant, other, "k")
    assert isinstance(answer, Rejected)
    assert (answer.code, answer.fields) == ("key_reused", ("amount_micros", "memo"))
    answer = await engine.submit(books.tenant, topup("bob", 30), "k")
    assert isinstance(answer, Rejected)
    assert answer.fields == ("account", "credit", "debit", "kind", "source")
    assert await books.balance("bob") == 30


async def test_a_refusal_for_funds_leaves_the_key_unused(books: Books, engine: Engine) -> None:
    """A decline is not permanent: the same request must be able to succeed when the money is there."""
    assert refused(await engine.submit(books.tenant, pay(101), "k")) == "insufficient_funds"
    assert refused(await engine.submit(books.tenant, pay(101), "k")) == "insufficient_funds"
    await engine.submit(books.tenant, topup("alice", 1), "more")
    committed(await engine.submit(books.tenant, pay(101), "k"))
    assert await books.balance("alice") == 0


async def test_a_refusal_for_an_unknown_account_leaves_the_key_unused(books: Books, engine: Engine) -> None:
    assert refused(await engine.submit(books.tenant, pay(1, credit="carol"), "k")) == "account_unknown"
    await books.put("carol")
    committed(await engine.submit(books.tenant, pay(1, credit="carol"), "k"))


async def test_a_refusal_for_another_currency_leaves_the_key_unused_for_any_payload(
    books: Books, engine: Engine
) -> None:
    await books.put("euros", currency="EUR")
    assert refused(await engine.submit(books.tenant, pay(1, credit="euros"), "k")) == "currency_mismatch"
    committed(await engine.submit(books.tenant, pay(1), "k"))


@pytest.mark.parametrize(
    ("tight", "wide"),
    [
        (VelocityLimit(HOUR, max_count=2), VelocityLimit(HOUR, max_count=3)),
        (VelocityLimit(HOUR, max_sum_micros=29), VelocityLimit(HOUR, max_sum_micros=30)),
    ],
    ids=["count", "sum"],
)
async def test_a_refusal_for_velocity_leaves_the_key_unused(
    books: Books, engine: Engine, tight: VelocityLimit, wide: VelocityLimit
) -> None:
    """A limit that forgets what its window holds, in the books or in the same batch, is no limit."""
    await books.put("alice", limits=[tight])
    committed(await engine.submit(books.tenant, pay(10), "k1"))
    second, third = await engine.submit_many(books.tenant, [(pay(10), "k2"), (pay(10), "k3")])
    committed(second)
    assert refused(third) == "velocity_exceeded"
    assert refused(await engine.submit(books.tenant, pay(10), "k3")) == "velocity_exceeded"
    await books.put("alice", limits=[wide])
    committed(await engine.submit(books.tenant, pay(10), "k3"))
    assert (await books.account("alice")).limits == (wide,)


async def test_a_velocity_window_may_hold_more_than_fits_a_bigint(books: Books, engine: Engine) -> None:
    """A sum that overflows would poison every operation of the account until the window moves on."""
    await books.put("vault", floor=None, limits=[VelocityLimit(HOUR, max_count=5)])
    await books.put("tomb", floor=None)
    for round_number in range(2):
        out = pay(MAX_MICROS, debit="vault", credit="tomb")
        committed(await engine.submit(books.tenant, out, f"out-{round_number}"))
        back = pay(MAX_MICROS, debit="tomb", credit="vault")
        committed(await engine.submit(books.tenant, back, f"back-{round_number}"))
    committed(await engine.submit(books.tenant, pay(1, debit="vault", credit="tomb"), "one-more"))


@pytest.mark.parametrize("where", ["accounts", "decide"])
async def test_a_handler_that_raises_fails_its_own_caller_alone(books: Books, engine: Engine, where: str) -> None:
    """One tenant's bug must not roll back the money of everybody in the batch."""
    before = engine.group.batches
    left, broken, right = await engine.submit_many(
        books.tenant, [(pay(1), "left"), (Explode(where=where), "k"), (pay(2), "right")]
    )
    assert engine.group.batches == before + 1
    assert isinstance(broken, Faulted)
    assert isinstance(broken.__cause__, ArithmeticError)
    committed(left)
    committed(right)
    assert await books.balance("bob") == 3
    # The key is unused.
    committed(await engine.submit(books.tenant, pay(4), "k"))


@pytest.mark.parametrize("name", ["a\nb", "", "x" * 300, "☃", "a\0b", 7], ids=repr)
async def test_a_kind_that_names_what_cannot_be_an_account_is_refused_alone(
    books: Books, engine: Engine, name: str | int
) -> None:
    """A name that breaks the list of names would shift every lock of the batch to another's account."""
    left, odd, right = await engine.submit_many(
        books.tenant, [(pay(1), "left"), (Oddly(name=name), "k"), (pay(2), "right")]
    )
    assert refused(odd) == "account_unknown"
    committed(left)
    committed(right)
    committed(await engine.submit(books.tenant, pay(4), "k"))


async def test_a_check_that_raises_fails_its_own_operation_alone(books: Books, engine: Engine) -> None:
    left, broken, right = await engine.submit_many(
        books.tenant, [(pay(1), "left"), (ChecksBadly(), "k"), (pay(2), "right")]
    )
    assert isinstance(broken, Faulted)
    committed(left)
    committed(right)
    committed(await engine.submit(books.tenant, pay(4), "k"))


async def test_a_kind_that_closes_what_nobody_knows_is_refused_alone(books: Books, engine: Engine) -> None:
    left, broken, right = await engine.submit_many(books.tenant, [(pay(1), "left"), (Orphan(), "k"), (pay(2), "right")])
    assert refused(broken) == "transaction_unknown"
    committed(left)
    committed(right)
    assert await books.balance("bob") == 3
    committed(await engine.submit(books.tenant, pay(4), "k"))


async def test_a_kind_of_the_users_own_is_claimed_run_recorded_and_replayed(books: Books, engine: Engine) -> None:
    tip = Tip(giver="alice", taker="bob", amount_micros=7)
    first = await engine.submit(books.tenant, tip, "k")
    assert committed(first).kind == "tip"
    assert isinstance(first, Committed)
    assert await engine.submit(books.tenant, tip, "k") == Duplicate(first.body)
    assert await books.balance("bob") == 7


async def test_a_kind_nobody_registered_is_refused(books: Books) -> None:
    async with books.engine() as engine:
        tip = Tip(giver="alice", taker="bob", amount_micros=7)
        assert refused(await engine.submit(books.tenant, tip, "k")) == "kind_unknown"


async def test_every_movement_kind_moves_its_amount_between_its_two_accounts(books: Books, engine: Engine) -> None:
    await books.put("revenue")
    submit, tenant = engine.submit, books.tenant
    moves: list[tuple[Operation, str, tuple[str, str]]] = [
        (pay(1), "transfer", ("alice", "bob")),
        (topup("bob", 2), "topup", ("world", "bob")),
        (
            Payout(account="alice", destination="world", amount_micros=4, currency="USD"),
            "payout",
            ("alice", "world"),
        ),
        (
            Fee(account="alice", revenue="revenue", amount_micros=8, currency="USD"),
            "fee",
            ("alice", "revenue"),
        ),
    ]
    for operation, kind, accounts in moves:
        transaction = committed(await submit(tenant, operation, kind))
        assert (transaction.kind, tuple(entry.account for entry in transaction.entries)) == (kind, accounts)
    balances = [await books.balance(name) for name in ("alice", "bob", "revenue", "world")]
    assert balances == [100 - 1 - 4 - 8, 1 + 2, 8, -100 - 2 + 4]


async def test_a_topup_or_payout_crosses_only_at_a_boundary(books: Books, engine: Engine) -> None:
    inside = TopUp(account="bob", source="alice", amount_micros=1, currency="USD")
    assert refused(await engine.submit(books.tenant, inside, "k")) == "not_a_boundary"


async def test_a_post_moves_many_legs_in_several_currencies_at_once(books: Books, engine: Engine) -> None:
    await books.put("alice-eur", currency="EUR")
    await books.put("exchange-usd", floor=None)
    await books.put("exchange-eur", currency="EUR", floor=None)
    legs = [("alice", -50), ("bob", 10), ("exchange-usd", 40)]
    dollars = tuple(PostLeg(name, amount, "USD") for name, amount in legs)
    euros = (PostLeg("exchange-eur", -36, "EUR"), PostLeg("alice-eur", 36, "EUR"))
    transaction = committed(await engine.submit(books.tenant, Post(legs=dollars + euros), "k"))
    assert [entry.amount_micros for entry in transaction.entries] == [-50, 10, 40, -36, 36]
    assert await books.balance("alice-eur") == 36
    lopsided = Post(legs=(*dollars, PostLeg("alice-eur", 1, "EUR"), PostLeg("exchange-eur", -2, "EUR")))
    assert refused(await engine.submit(books.tenant, lopsided, "k2")) == "legs_unbalanced"


@pytest.mark.parametrize(
    ("release", "balances"),
    [
        ({"to": "bob"}, (60, 0, 40)),
        ({"to": "bob", "amount_micros": 15}, (85, 0, 15)),
        ({}, (100, 0, 0)),
    ],
    ids=["whole", "partial", "back"],
)
async def test_a_hold_is_released_whole_in_part_or_back_and_only_once(
    books: Books, engine: Engine, release: dict[str, str | int], balances: tuple[int, int, int]
) -> None:
    """A second release under another key would pay the held money out twice."""
    await books.put("held")
    hold = Hold(account="alice", held="held", amount_micros=40, currency="USD")
    name = committed(await engine.submit(books.tenant, hold, "hold")).id
    operation = Release(hold=name, **release)  # type: ignore[arg-type]
    first = await engine.submit(books.tenant, operation, "k1")
    assert committed(first).closes == name
    assert refused(await engine.submit(books.tenant, operation, "k2")) == "already_closed"
    assert isinstance(first, Committed)
    assert await engine.submit(books.tenant, operation, "k1") == Duplicate(first.body)
    found = (await books.balance("alice"), await books.balance("held"), await books.balance("bob"))
    assert found == balances


async def test_two_releases_of_one_hold_in_one_batch_close_it_once(books: Books, engine: Engine) -> None:
    await books.put("held")
    hold = Hold(account="alice", held="held", amount_micros=40, currency="USD")
    name = committed(await engine.submit(books.tenant, hold, "hold")).id
    both = await engine.submit_many(books.tenant, [(Release(hold=name, to="bob"), "k1"), (Release(hold=name), "k2")])
    assert committed(both[0]).closes == name
    assert refused(both[1]) == "already_closed"


async def test_a_transaction_is_refunded_leg_by_leg_and_only_once(books: Books, engine: Engine) -> None:
    name = committed(await engine.submit(books.tenant, pay(30), "k")).id
    refund = committed(await engine.submit(books.tenant, Refund(transaction=name), "r1"))
    assert [(entry.account, entry.amount_micros) for entry in refund.entries] == [("alice", 30), ("bob", -30)]
    assert refused(await engine.submit(books.tenant, Refund(transaction=name), "r2")) == "already_closed"
    assert refused(await engine.submit(books.tenant, Refund(transaction=NOBODYS), "r3")) == "transaction_unknown"
    assert (await books.balance("alice"), await books.balance("bob")) == (100, 0)


async def test_a_hundred_twins_in_one_process_run_once(books: Books, engine: Engine) -> None:
    """Clients retry while the first request is still running."""
    answers = await asyncio.gather(*[engine.submit(books.tenant, pay(1), "k") for _ in range(100)])
    assert Counter(type(answer) for answer in answers) == {Committed: 1, Duplicate: 99}
    assert len({answer.body for answer in answers if isinstance(answer, Committed | Duplicate)}) == 1
    assert await books.balance("bob") == 1


async def test_twins_over_two_engines_run_once(dsn: str, books: Books, engine: Engine) -> None:
    """Behind a load balancer the retry lands on another process, which knows nothing of the first."""
    async with stores.opened(dsn) as elsewhere, elsewhere.engine() as other:
        engines = [engine, other] * 25
        for key in ("k1", "k2", "k3"):
            answers = await asyncio.gather(*[each.submit(books.tenant, pay(1), key) for each in engines])
            assert Counter(type(answer) for answer in answers) == {Committed: 1, Duplicate: 49}
            assert len({answer.body for answer in answers if isinstance(answer, Committed | Duplicate)}) == 1
    assert await books.count("operation") == 1 + 3
    assert await books.balance("bob") == 3


class Gated:
    """A store whose transactions wait where the test tells them to: the race is forced, not hoped for."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self.locking = asyncio.Event()
        self.claiming = asyncio.Event()
        self.claimed = asyncio.Event()
        self.may_record = asyncio.Event()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[LedgerTransaction]:
        async with self._store.transaction() as transaction:
            lock_accounts, claim, record = transaction.lock_accounts, transaction.claim, transaction.record

            async def lock_and_tell(*arguments: object, **named: object) -> object:
                self.locking.set()
                return await lock_accounts(*arguments, **named)  # type: ignore[arg-type]

            async def claim_and_tell(*arguments: object, **named: object) -> object:
                self.claiming.set()
                answer = await claim(*arguments, **named)  # type: ignore[arg-type]
                self.claimed.set()
                return answer

            async def record_when_told(*arguments: object) -> None:
                await self.may_record.wait()
                await record(*arguments)  # type: ignore[arg-type]

            transaction.lock_accounts = lock_and_tell  # type: ignore[assignment, method-assign]
            transaction.claim = claim_and_tell  # type: ignore[assignment, method-assign]
            transaction.record = record_when_told  # type: ignore[assignment, method-assign]
            yield transaction


@asynccontextmanager
async def two_gated(books: Books) -> AsyncIterator[tuple[Gated, Engine, Gated, Engine]]:
    first, second = Gated(books.store), Gated(books.store)
    async with books.engine(store=first) as one, books.engine(store=second) as two:
        yield first, one, second, two


async def test_a_twin_that_asks_while_the_first_is_at_work_is_answered_with_the_first(books: Books) -> None:
    """Both looked before either wrote: exactly the moment in which money is paid twice."""
    async with two_gated(books) as (first, one, second, two):
        second.may_record.set()
        leader = asyncio.create_task(one.submit(books.tenant, pay(5), "k"))
        await first.claimed.wait()
        twin = asyncio.create_task(two.submit(books.tenant, pay(5), "k"))
        await second.locking.wait()
        first.may_record.set()
        answer = await leader
        assert isinstance(answer, Committed)
        assert await twin == Duplicate(answer.body)
    assert await books.balance("bob") == 5


async def test_one_key_used_at_once_for_different_accounts_commits_one_and_names_the_difference(
    books: Books,
) -> None:
    """No account is shared, so nothing but the key itself can keep the two apart."""
    await books.put("carol")
    await books.put("dora", floor=None)
    async with two_gated(books) as (first, one, second, two):
        leader = asyncio.create_task(one.submit(books.tenant, pay(5), "k"))
        await first.claimed.wait()
        other = asyncio.create_task(two.submit(books.tenant, pay(5, debit="dora", credit="carol"), "k"))
        await second.claiming.wait()
        first.may_record.set()
        committed(await leader)
        second.may_record.set()
        answer = await other
        assert isinstance(answer, Rejected)
        assert (answer.code, answer.fields) == ("key_reused", ("credit", "debit"))
    assert await books.balance("carol") == 0


async def test_within_a_batch_each_operation_sees_those_before_it(books: Books, engine: Engine) -> None:
    before = engine.group.batches
    answers = await engine.submit_many(
        books.tenant,
        [(pay(150), "too-early"), (topup("alice", 50), "in"), (pay(150), "out"), (pay(1), "too-late")],
    )
    assert engine.group.batches == before + 1
    assert refused(answers[0]) == "insufficient_funds"
    assert [entry.balance_micros for entry in committed(answers[1]).entries] == [-150, 150]
    assert [entry.balance_micros for entry in committed(answers[2]).entries] == [0, 150]
    assert refused(answers[3]) == "insufficient_funds"


async def test_entries_are_numbered_without_gaps_and_each_balance_follows_from_the_last(
    books: Books, engine: Engine
) -> None:
    """Auditors read the running balance: a gap or a jump means that something was taken out."""
    for round_number in range(3):
        batch = [(pay(1), f"{round_number}-{index}") for index in range(5)]
        await engine.submit_many(books.tenant, [*batch, (pay(1_000), f"{round_number}-refused")])
    entries = await books.entries("alice")
    assert [entry.number for entry in entries] == list(range(1, 17))
    assert [entry.balance_micros for entry in entries] == [100 - index for index in range(16)]
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    assert (await books.account("alice")).entries == 16


async def test_within_an_account_time_never_goes_back(books: Books, engine: Engine) -> None:
    """A server's clock is set back now and then; balances of the past are found by time."""
    ahead = datetime(2100, 1, 1, tzinfo=UTC)
    await books.postdate("alice", ahead)
    for key in ("k1", "k2"):
        assert committed(await engine.submit(books.tenant, pay(1), key)).at < ahead
    assert [entry.at for entry in await books.entries("alice")][-2:] == [ahead, ahead]
    # Whom she pays keeps the server's time, and so do those he pays.
    assert all(entry.at < ahead for entry in await books.entries("bob"))


@pytest.mark.parametrize("size", [3, 40])
async def test_an_account_from_the_future_does_not_date_the_batch_it_is_in(
    books: Books, engine: Engine, size: int
) -> None:
    """One account of a batch was written while the server's clock was ahead: the others are of today."""
    ahead = datetime(2100, 1, 1, tzinfo=UTC)
    await books.put("carol")
    await books.postdate("alice", ahead)
    before = engine.group.batches
    paid, *others = await asyncio.gather(
        engine.submit(books.tenant, pay(1), "k"),
        *(engine.submit(books.tenant, topup("carol", 1), f"k{n}") for n in range(size)),
    )
    assert engine.group.batches == before + 1
    assert all(committed(one).at < ahead for one in (paid, *others))
    carols = await books.entries("carol")
    assert len(carols) == size
    assert all(entry.at < ahead for entry in carols)
    assert (await books.entries("alice"))[-1].at == ahead


async def test_two_tenants_with_the_same_accounts_and_keys_do_not_see_each_other(books: Books, engine: Engine) -> None:
    """Tenants are walls: a key or an account of one must mean nothing to the other, also within one batch."""
    ours, theirs = books.tenant, await books.new_tenant()
    for name, floor in (("alice", None), ("bob", 0), ("theirs-alone", None)):
        await books.put(name, floor=floor, tenant=theirs)
    before = engine.group.batches
    mine, other = await asyncio.gather(engine.submit(ours, pay(5), "k"), engine.submit(theirs, pay(9), "k"))
    assert engine.group.batches == before + 1
    assert committed(mine).id != committed(other).id
    assert (await books.balance("bob"), await books.balance("bob", theirs)) == (5, 9)
    assert refused(await engine.submit(ours, pay(1, debit="theirs-alone"), "k2")) == "account_unknown"
    stolen = Refund(transaction=committed(other).id)
    assert refused(await engine.submit(ours, stolen, "k3")) == "transaction_unknown"


async def test_concurrent_spends_stop_exactly_at_the_floor(dsn: str, books: Books, engine: Engine) -> None:
    """One spend too many is money that does not exist; one too few is a customer turned away."""
    await books.put("alice", floor=10)
    async with stores.opened(dsn) as elsewhere, elsewhere.engine() as other:
        calls = [(engine, other)[n % 2].submit(books.tenant, pay(7), f"k{n}") for n in range(40)]
        answers = await asyncio.gather(*calls)
    # 90 above the floor buy 12 spends of 7; the 13th would end at 9.
    assert Counter(type(answer) for answer in answers) == {Committed: 12, Rejected: 28}
    assert {answer.code for answer in answers if isinstance(answer, Rejected)} == {"insufficient_funds"}
    assert (await books.balance("alice"), await books.balance("bob")) == (16, 84)


async def test_what_does_not_fit_a_bigint_is_refused(books: Books, engine: Engine) -> None:
    """A wrapped balance turns a fortune into a debt."""
    await books.put("vault")
    await books.put("other-world", floor=None)
    assert refused(await engine.submit(books.tenant, topup("vault", MAX_MICROS + 1), "k")) == "amount_overflow"
    all_there_is = TopUp(account="vault", source="other-world", amount_micros=MAX_MICROS, currency="USD")
    committed(await engine.submit(books.tenant, all_there_is, "k"))
    assert refused(await engine.submit(books.tenant, topup("vault", 1), "k2")) == "balance_overflow"
    one_more = TopUp(account="bob", source="other-world", amount_micros=1, currency="USD")
    assert refused(await engine.submit(books.tenant, one_more, "k2")) == "balance_overflow"
    assert (await books.balance("vault"), await books.balance("other-world")) == (MAX_MICROS, -MAX_MICROS)
    committed(await engine.submit(books.tenant, pay(1), "k2"))


async def test_one_by_one_and_as_a_batch_the_same_rows_are_written(books: Books, engine: Engine) -> None:
    """The paths for few and for many rows are different code; the books must not show which was taken."""
    alone, together = await books.new_tenant(), await books.new_tenant()
    for tenant in (alone, together):
        for name, floor in (("world", None), ("alice", 0), ("bob", 0), ("held", 0)):
            await books.put(name, floor=floor, tenant=tenant)
        await engine.submit(tenant, topup("alice", 1_000), "given")
        hold = Hold(account="alice", held="held", amount_micros=40, currency="USD")
        name = committed(await engine.submit(tenant, hold, "hold")).id
        operations: list[tuple[Operation, str]] = [
            (
                Transfer(debit="alice", credit="bob", amount_micros=n, currency="USD", memo=f"№ {n} 'quoted' \\ \n"),
                f"k{n}",
            )
            for n in range(1, 20)
        ]
        operations += [(Release(hold=name, to="bob"), "released"), (pay(10_000), "refused")]
        before = engine.group.batches
        if tenant is alone:
            answers = [await engine.submit(tenant, operation, key) for operation, key in operations]
        else:
            answers = list(await engine.submit_many(tenant, operations))  # type: ignore[arg-type]
            assert engine.group.batches == before + 1
        assert [type(answer) for answer in answers] == [Committed] * 20 + [Rejected]
    written = await books.written(alone)
    assert {table: len(rows) for table, rows in written.items()} == {
        "operation": 22,
        "entry": 44,
        "closing": 1,
        "journal": 22 + 4,
        "outbox": 22,
    }
    assert await books.written(together) == written


async def test_submit_many_keeps_the_order_and_runs_a_key_it_holds_twice_once(books: Books, engine: Engine) -> None:
    answers = await engine.submit_many(
        books.tenant,
        [(pay(1), "k"), (pay(2), "other"), (pay(1), "k"), (pay(3), "k"), (pay(4), ""), (pay(5), "last")],
    )
    first = answers[0]
    assert isinstance(first, Committed)
    assert committed(answers[1]).entries[1].amount_micros == 2
    assert answers[2] == Duplicate(first.body)
    assert isinstance(answers[3], Rejected)
    assert (answers[3].code, answers[3].fields) == ("key_reused", ("amount_micros",))
    assert refused(answers[4]) == "idempotency_key_missing"
    assert committed(answers[5]).entries[1].amount_micros == 5
    assert await books.balance("bob") == 1 + 2 + 5


async def test_who_holds_an_account_delays_only_those_who_need_it(books: Books, engine: Engine) -> None:
    """A stranger's forgotten transaction must not stop everybody's payments."""
    await books.put("carol", floor=None)
    async with books.stranger() as stranger:
        await stranger.hold_account(books.tenant, "alice")
        blocked = asyncio.create_task(engine.submit(books.tenant, pay(1), "blocked"))
        free = engine.submit(books.tenant, pay(1, debit="carol"), "free")
        committed(await free)
        assert not blocked.done()
    committed(await blocked)


async def test_who_holds_a_key_delays_only_its_twins(books: Books, engine: Engine) -> None:
    async with books.stranger() as stranger:
        await stranger.hold_key(books.tenant, operation_id(books.tenant.name, "held"))
        batch = asyncio.create_task(
            engine.submit_many(books.tenant, [(pay(1), "held"), *((pay(1), f"free-{n}") for n in range(7))])
        )
        while await books.balance("bob") < 7:
            await asyncio.sleep(0.05)
        assert not batch.done()
    for answer in await batch:
        committed(answer)
    assert await books.balance("bob") == 8


async def test_a_floor_above_what_an_account_holds_is_refused_in_words(books: Books) -> None:
    """A constraint's name is no answer to a person, and a floor above the balance is no floor."""
    for name, floor in (("carol", 1), ("alice", 101)):
        answer = await books.try_put(name, floor=floor)
        assert isinstance(answer, Rejected)
        assert answer.code == "floor_above_balance"
    await books.put("alice", floor=100)
    assert (await books.account("alice")).floor_micros == 100


async def test_an_account_made_by_several_at_once_is_made_once(dsn: str, books: Books) -> None:
    async with stores.opened(dsn) as elsewhere:
        both = [books, elsewhere] * 3
        answers = await asyncio.gather(*[each.try_put("carol", tenant=books.tenant) for each in both])
    assert Counter(answers) == {Put.CREATED: 1, Put.KEPT: 5}
