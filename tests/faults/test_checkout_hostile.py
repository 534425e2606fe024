"""A flash sale against a hostile provider, with shops that are killed and stopped: charged = PAID + refunded.

40 pieces and 400 buyers by default; TALLY_TEST_BUYERS=20000 for the sale of 1,000 pieces, TALLY_TEST_SEED for another
one. The provider's calls misbehave in every way of its catalogue, its webhooks come late, doubled, reordered, forged,
twice under two ids, or never. A reservation holds for seconds, so that whoever's webhook is late has lost it to the
next buyer. Every second or so a shop is killed, or stopped for longer than its leases. Time is hurried
(`tests.faults.selling`). The counts are printed.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tallystick import app
from tallystick.access import store as tenants
from tallystick.database.migrate import migrate
from tallystick.providers.http import Http, Reply
from tallystick.providers.steady import steady
from tallystick.settings import Settings
from tallystick.simulator.catalogue import FAULTS, KEYED, Stage
from tallystick.simulator.process import RunningSimulator, start
from tests import servers
from tests.checkouts import CARD, Halves, compare, pass_time
from tests.deliveries import SECRET
from tests.faults.matrix import seed
from tests.faults.plans import not_struck, struck_by
from tests.faults.selling import BUYERS, HURRIED, IS_SHORT, LEASE_SECONDS, TTL_SECONDS, UNIT_SECONDS
from tests.faults.test_settlement_hostile import PatientControl, Stopwatch
from tests.ledgers import broken, fetchval

SEED = int(os.environ.get("TALLY_TEST_SEED", "7"))
PIECES = BUYERS // 10 if IS_SHORT else BUYERS // 20
SHOPS = 2
# Buyers who are there at the same time.
CROWD = 40 if IS_SHORT else 150
PRICE = 25_000_000
# Of the calls that move money, and of the questions.
HOSTILITY = 0.15
# Of the webhooks: late by more than a reservation holds, and every other trick.
LATE = 0.35
TRICKS = 0.20
LATE_SECONDS = TTL_SECONDS + 4
# A buyer asks this often whether something is free again, and clicks this often.
LOOKS, CLICKS = 4, 6
MOST_DISTURBANCES = 4 if IS_SHORT else 1_000
PATIENCE_SECONDS = 60 + BUYERS / 50
# What is not the default: real time is short, and a body of 32 MB tells no more than one of 9.
ARGUMENTS = {"huge_body": "9", "trickle": "2", "slow_before": "1", "slow_after": "2", "error_500_object_later": "3600"}
# A refund that the provider answered with an error for good, and did not make, is a person's to decide: nobody else can
# know. The sale has no such person; refusals have (`_a_person_decides`).
FOR_A_PERSON = {"refund": {"error_500_no_object"}}
# Beside what chance does, each fault has its turn: one of so many calls, until all had theirs.
EVERY = {"charge": 1, "refund": 1, "list": 3, "events": 2, "webhook": 4}
# A long sale has calls enough for every fault of every operation; a short one has not, but so many different ones
# strike for certain: each refund of the ghosts below meets another one, and questions are asked all the time.
LEAST_STRUCK = {"refund": 4, "list": 6, "events": 3} if IS_SHORT else {}
# Of the pieces. Fewer would be a sale that hardly happened.
LEAST_SOLD = 0.5
# Charges that the provider answers with an error and makes an hour later, when their orders are long swept: ghosts by
# plan, whatever the timing. One of so many calls, from the second on.
GHOSTS, GHOST_EVERY = (6, 5) if IS_SHORT else (60, 10)
# Of the ghosts. One may strike a call whose shop is killed while it asks again.
LEAST_LATE = GHOSTS - 2
# Webhooks that are late for certain; the sweeper finds most of these payments at the provider before it is told.
LEAST_HELD_BACK = 3
# Longer than any lease, leave and pause of a hurried shop.
ROUND = timedelta(minutes=5)
# What the simulator shows of one kind at once.
MOST_OBJECTS = 10_000


GHOST = f"error_500_object_later({ARGUMENTS['error_500_object_later']})"


def _ghost_places() -> set[int]:
    return set(range(2, 2 + GHOSTS * GHOST_EVERY, GHOST_EVERY))


def after_the_sale() -> str:
    """The provider behaves but for refunds: those of the ghosts come now, and each fault strikes one of them."""
    rules = [
        rule.rsplit("@", 1)[0]
        for rule in hostile_plan().split("\n")
        if rule.startswith("stripe.refund:") and "@" in rule
    ]
    # In a short sale there are fewer refunds than faults: which come first turns with the commit.
    first = zlib.crc32(seed().encode()) % len(rules)
    turned = rules[first:] + rules[:first]
    some = turned[: GHOSTS + 2] if IS_SHORT else turned
    return "\n".join(f"{rule}@{place}" for place, rule in enumerate(some, 1))


def hostile_plan() -> str:
    """Every kind of fault that can strike a charge, a refund or a question, equally often."""
    rules = []
    for operation in ("charge", "refund", "list", "events"):
        fitting = [
            fault
            for fault in FAULTS
            if fault.stage is not Stage.WEBHOOK
            and "stripe" in fault.dialects
            and ("*" in fault.operations or operation in fault.operations)
            and not (fault.needs_key and operation not in KEYED["stripe"])
            and fault.name not in FOR_A_PERSON.get(operation, ())
        ]
        ghosts = _ghost_places() if operation == "charge" else set()
        places = (place for place in itertools.count(EVERY[operation], EVERY[operation]) if place not in ghosts)
        for place, fault in zip(places, fitting, strict=False):
            argument = f"({ARGUMENTS[fault.name]})" if fault.name in ARGUMENTS else ""
            # Once for certain; then by chance.
            rules.append(f"stripe.{operation}:{fault.name}{argument}@{place}")
            rules.append(f"stripe.{operation}:{fault.name}{argument}={100 * HOSTILITY / len(fitting):.4f}%")
    rules += [f"stripe.charge:{GHOST}@{place}" for place in sorted(_ghost_places())]
    told = [
        fault.name
        for fault in FAULTS
        if fault.stage is Stage.WEBHOOK and "stripe" in fault.dialects and fault.name != "webhook_late"
    ]
    rules.append(f"stripe.webhook:webhook_late({LATE_SECONDS:g})={100 * LATE:.4f}%")
    # And the news of some payments is late for certain.
    rules += [f"stripe.payment_intent.succeeded:webhook_late({LATE_SECONDS:g})@{place}" for place in range(2, 14, 2)]
    # Two calls each: one of them may be a payment that is late for certain, and two tricks are not played on one.
    rules += [
        f"stripe.webhook:{name}@{place * EVERY['webhook']}-{place * EVERY['webhook'] + 1}"
        for place, name in enumerate(told, 1)
    ]
    rules += [f"stripe.webhook:{name}={100 * TRICKS / len(told):.4f}%" for name in told]
    # What is certain comes first: of two rules that meet, the first strikes.
    return "\n".join(sorted(rules, key=lambda rule: "@" not in rule))


@pytest.fixture
def simulator(tmp_path: Path) -> Iterator[RunningSimulator]:
    running = start(tmp_path / "books.sqlite", log=tmp_path / "simulator.log", faults=hostile_plan(), seed=SEED)
    yield running
    running.stop()


class Shops:
    """Shop processes at addresses that stay; killed, stopped and started again."""

    def __init__(self, dsn: str, url: str, log: Path, chance: random.Random) -> None:
        self._arguments = (dsn, url)
        self._log = log
        self._chance = chance
        self._shops: list[subprocess.Popen[bytes]] = []
        self.ports = [_free_port() for _ in range(SHOPS)]
        self.kills = 0
        self.stops = 0

    async def start(self) -> None:
        self._shops = [self._started(port) for port in self.ports]
        await asyncio.gather(*(self._heard(shop) for shop in self._shops))

    async def disturb(self) -> None:
        """One of them: SIGKILL wherever it is, or SIGSTOP for longer than its leases."""
        which = self._chance.randrange(SHOPS)
        shop = self._shops[which]
        assert shop.poll() is None, f"a shop ended by itself: {self._said()}"
        # In turns: a run in which nobody was stopped, or killed, would prove half.
        if self.kills <= self.stops:
            self.kills += 1
            shop.kill()
            shop.wait()
            self._close(shop)
            self._shops[which] = self._started(self.ports[which])
            await self._heard(self._shops[which])
        else:
            self.stops += 1
            shop.send_signal(signal.SIGSTOP)
            await asyncio.sleep(LEASE_SECONDS + UNIT_SECONDS)
            shop.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for shop in self._shops:
            shop.kill()
            shop.wait()
            self._close(shop)
        self._shops = []

    def _started(self, port: int) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults.selling", *self._arguments, str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    async def _heard(self, shop: "subprocess.Popen[bytes]") -> None:
        assert shop.stdout is not None
        line = await asyncio.to_thread(shop.stdout.readline)
        assert line, f"a shop did not open: {self._said()}"

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    @staticmethod
    def _close(shop: "subprocess.Popen[bytes]") -> None:
        for pipe in (shop.stdin, shop.stdout):
            if pipe is not None:
                pipe.close()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Crowd:
    """Buyers: each wants one piece, tries again with the same key when nobody answers, and clicks until he knows."""

    def __init__(self, ports: list[int], key: str, chance: random.Random) -> None:
        self._shops = [Http(f"http://127.0.0.1:{port}") for port in ports]
        self._key = key
        self._chance = chance
        self.became: Counter[str] = Counter()
        self.unanswered = 0

    async def come(self, many: int) -> None:
        numbers = iter(range(many))

        async def one_after_another() -> None:
            for number in numbers:
                self.became[await self._buy(number)] += 1

        await asyncio.gather(*(one_after_another() for _ in range(CROWD)))
        for shop in self._shops:
            await shop.close()

    async def _buy(self, number: int) -> str:
        wish = {"sku": "phone", "quantity": 1, "amount_micros": PRICE, "currency": "EUR"}
        for _ in range(LOOKS):
            status, order = await self._ask("/v1/orders", wish, f"buyer-{number}")
            if status == 201:
                return await self._pay(order)
            if order.get("code") != "sold_out":
                return str(order.get("code", status))
            await asyncio.sleep(self._chance.uniform(0.1, 0.4))
        return "sold_out"

    async def _pay(self, order: dict[str, Any]) -> str:
        click = {"reservation_token": order["reservation_token"], "payment_method": CARD}
        for _ in range(CLICKS):
            status, payment = await self._ask(f"/v1/orders/{order['id']}/pay", click, f"pay-{order['id']}")
            if status == 201:
                return "charged"
            if status != 202:
                return str(payment.get("code", status))
            await asyncio.sleep(self._chance.uniform(0.1, 0.5))
        return "left without an answer"

    async def _ask(self, path: str, body: object, key: str | None = None) -> tuple[int, dict[str, Any]]:
        """Of one shop or another, until one answers."""
        given = [("authorization", f"Bearer {self._key}"), ("content-type", "application/json")]
        if key is not None:
            given.append(("idempotency-key", key))
        while True:
            shop = self._chance.choice(self._shops)
            request = shop.request("POST", path, given, json.dumps(body).encode())
            answer = await shop.send(request, sendable_until=steady() + 5, answer_seconds=6 * UNIT_SECONDS)
            if isinstance(answer, Reply) and answer.status < 500 and answer.status != 429:
                found = json.loads(answer.body)
                if found.get("code") != "in_flight":
                    return answer.status, found
            self.unanswered += 1
            await asyncio.sleep(0.1)


async def _disturbed(shops: Shops, until: "asyncio.Task[None]", chance: random.Random) -> None:
    for _ in range(MOST_DISTURBANCES):
        await asyncio.wait([until], timeout=chance.uniform(0.5, 1.5) * (1 if IS_SHORT else 5))
        if until.done():
            return
        await shops.disturb()


async def _entries(control: PatientControl) -> list[dict[str, Any]]:
    """Every payment and refund of the provider's own books."""
    found = []
    for kind in ("payment_intent", "refund"):
        of_kind = await asyncio.to_thread(control.made, "stripe", kind)
        assert len(of_kind) < MOST_OBJECTS, "the books are longer than one answer"
        found += of_kind
    return found


async def _open(dsn: str, control: PatientControl) -> Counter[str]:
    """What is not at its end. A charge that nobody answered, and of which the provider has nothing, took no money."""
    connection = await asyncpg.connect(dsn)
    try:
        log = await connection.fetch(
            "SELECT idempotency_key, operation_type FROM tally.payment_idempotency_log WHERE status = 'PENDING'"
        )
        events = await connection.fetchval(
            "SELECT count(*) FROM tally.webhook_events WHERE status IN ('UNPROCESSED', 'IN_PROCESSING', 'DEAD_LETTER')"
        )
        orders = await connection.fetchval("SELECT count(*) FROM tally.orders WHERE status = 'PENDING'")
        receipts = await connection.fetch("SELECT payment_intent_id FROM tally.payment_receipt")
    finally:
        await connection.close()
    heard = {row["payment_intent_id"] for row in receipts}
    entries = await _entries(control)
    known = {entry["reference"] for entry in entries}
    moved = {entry["id"] for entry in entries if entry["kind"] == "payment_intent" and entry["state"] == "moved"}
    # Payments that nobody has told us of: a webhook that was lost is found in the provider's list.
    found = Counter({"events": events, "orders": orders, "unheard": len(moved - heard)})
    for row in log:
        is_there = row["operation_type"] == "REFUND" or row["idempotency_key"].hex() in known
        found[row["operation_type"] if is_there else "silent"] += 1
    return found


async def _until_quiet(dsn: str, control: PatientControl) -> int:
    """Nobody is killed any more, and the provider behaves; what waits for its time is helped along.

    How often a person had to decide: a payment whose refund failed keeps its event open until he does.
    """
    ends = time.monotonic() + PATIENCE_SECONDS
    decided = 0
    while True:
        decided += await _a_person_decides(dsn, control.url)
        still = await _open(dsn, control)
        if not still.total() - still["silent"]:
            return decided
        if time.monotonic() > ends:
            raise AssertionError(f"still open after {PATIENCE_SECONDS:g} s: {still}; {await _owed(dsn)}")
        # Beside those at work, who take their locks in another order, and change what is being made older.
        with suppress(asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
            await pass_time(dsn, ROUND, in_one_snapshot=True)
        # What a provider answers with an error and does an hour later is among it.
        await asyncio.to_thread(control.advance, seconds=ROUND.total_seconds())
        await asyncio.sleep(0.5)


async def _owed(dsn: str) -> list[str]:
    """What is known of refunds and events that do not end."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT l.status, l.reason, l.tries, l.claim_number, l.due_at - clock_timestamp() AS due,"
            "       convert_from(l.provider_response, 'UTF8') AS response,"
            "       (SELECT json_agg(a.* ORDER BY number) FROM tally.attempt a WHERE key = l.idempotency_key) AS sent"
            "  FROM tally.payment_idempotency_log l WHERE l.operation_type = 'REFUND' AND l.status = 'PENDING' LIMIT 5"
        )
        rows += await connection.fetch(
            "SELECT e.*, (SELECT json_agg(l.*) FROM tally.payment_idempotency_log l"
            "              WHERE l.payment_intent_id IN (e.provider_id, e.parent)) AS log"
            "  FROM tally.webhook_events e WHERE status NOT LIKE 'PROCESSED%' LIMIT 5"
        )
    finally:
        await connection.close()
    return [str(dict(row)) for row in rows]


async def _a_person_decides(dsn: str, url: str) -> int:
    """Refunds that were refused, or came back, are sent once more."""
    if not await fetchval(dsn, "SELECT count(*) FROM tally.payment_break WHERE kind = 'refund_failed'"):
        return 0
    async with app.running(Settings(database_url=dsn), migrating=False, simulator_url=url) as service:
        owner = await tenants.ensure_tenant(service.database, "default")
        async with service.database.owning() as connection:
            failed = await connection.fetch(
                "SELECT DISTINCT ON (payment_intent_id) order_id, payment_intent_id, status"
                "  FROM tally.payment_idempotency_log WHERE operation_type = 'REFUND'"
                " ORDER BY payment_intent_id, attempt DESC"
            )
        decided = 0
        for row in failed:
            if row["status"] == "FAILED":
                order = f"or_{row['order_id'].hex}"
                assert (
                    await service.refunds.decisions.decide(owner, order, row["payment_intent_id"], "refund") == "REFUND"
                )
                decided += 1
    return decided


async def _the_days_after(dsn: str, control: PatientControl) -> int:
    """Payments that appear after their error, webhooks that were held back, refunds that come back: and then quiet."""
    decided = 0
    for span in (timedelta(hours=2), timedelta(days=2), timedelta(days=2)):
        await asyncio.to_thread(control.advance, seconds=span.total_seconds())
        decided += await _until_quiet(dsn, control)
    return decided


@pytest.mark.timeout(3 * PATIENCE_SECONDS + 300 + BUYERS / 10)
async def test_whatever_happens_in_a_flash_sale_charged_is_paid_and_refunded(
    embedded18: servers.Server,
    simulator: RunningSimulator,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """To the last micro, by the provider's own books; nothing is oversold, doubled or lost."""
    clock, chance = Stopwatch(), random.Random(SEED)
    control = PatientControl(simulator.url)
    dsn = embedded18.fresh_database()
    await migrate(dsn)
    key = await _opened(dsn, simulator.url)
    shops = Shops(dsn, simulator.url, tmp_path / "shops.log", chance)
    crowd = Crowd(shops.ports, key, chance)
    try:
        await shops.start()
        endpoint = {"url": f"http://127.0.0.1:{shops.ports[0]}/webhooks/simulator", "secrets": [SECRET]}
        await asyncio.to_thread(control.call, "PUT", "endpoints/stripe", endpoint)
        clock.lap("open")
        sale = asyncio.create_task(crowd.come(BUYERS))
        await _disturbed(shops, sale, chance)
        await sale
        clock.lap("sold")
        struck: dict[str, int] = control.struck()
        by_operation = struck_by(await asyncio.to_thread(control.call, "GET", "faults"))
        await asyncio.to_thread(control.call, "DELETE", "faults")
        await asyncio.to_thread(control.plan, after_the_sale())
        decided = await _until_quiet(dsn, control)
        clock.lap("quiet")
        decided += await _the_days_after(dsn, control)
        silent = (await _open(dsn, control))["silent"]
        by_operation.setdefault("refund", set()).update(
            struck_by(await asyncio.to_thread(control.call, "GET", "faults")).get("refund", set())
        )
        clock.lap("days after")
    finally:
        shops.stop()
    halves = await compare(dsn, await _entries(control))
    late = await _late(dsn)
    told = _told(halves, crowd, shops, struck=struck, decided=decided, silent=silent, late=late, laps=clock.laps)
    told += "\n  different faults: " + ", ".join(
        f"{len(names)} of {what}" for what, names in sorted(by_operation.items())
    )
    record_property("counted", told)
    assert halves.is_equal, (halves.charged, halves.paid, halves.refunded, halves.doubled, halves.lost)
    assert halves.orders["PAID"] * PRICE == halves.paid
    # Oversold: the database's rule and the count agree.
    assert halves.orders["PAID"] <= PIECES
    assert await fetchval(dsn, "SELECT sold = $1 AND reserved = 0 FROM tally.sku", halves.orders["PAID"])
    assert set(halves.events) <= {"PROCESSED_OK", "PROCESSED_COMPENSATED"}
    assert len(halves.undecided) == silent
    assert await broken(dsn) == {}
    # A provider that behaved, or shops that were left alone, would prove nothing.
    assert struck["webhook_late"] >= LEAST_HELD_BACK, struck
    assert late >= LEAST_LATE, "ghosts by plan"
    assert halves.refunds >= LEAST_LATE
    assert halves.orders["PAID"] >= LEAST_SOLD * PIECES, halves.orders
    assert shops.kills >= 1
    assert shops.stops >= 1
    assert not_struck(hostile_plan(), by_operation, LEAST_STRUCK) == {}


async def _opened(dsn: str, url: str) -> str:
    """A tenant with a stock and a key."""
    async with app.running(Settings(database_url=dsn), limits=HURRIED, migrating=False, simulator_url=url) as service:
        owner = await tenants.ensure_tenant(service.database, "default")
        key = tenants.new_key()
        await tenants.add_key(service.database, owner, "admin", key)
        await service.orders.set_stock(owner, "phone", PIECES)
    return key


async def _late(dsn: str) -> int:
    return int(await fetchval(dsn, "SELECT count(*) FROM tally.payment_receipt WHERE reason = 'late'"))


def _told(
    halves: Halves,
    crowd: Crowd,
    shops: Shops,
    *,
    struck: dict[str, int],
    decided: int,
    silent: int,
    late: int,
    laps: list[str],
) -> str:
    became = ", ".join(f"{count} {what}" for what, count in sorted(crowd.became.items()))
    orders = ", ".join(f"{count} {what}" for what, count in sorted(halves.orders.items()))
    oversold = max(halves.orders["PAID"] - PIECES, 0)
    lines = (
        f"flash sale: {PIECES} pieces, {BUYERS} buyers, seed {SEED}: {became}",
        f"orders: {orders}; {halves.payments} payments, {late} of them late, {halves.refunds} refunds",
        f"charged {halves.charged} = PAID {halves.paid} + refunded {halves.refunded} micros",
        f"doubled {len(halves.doubled)}, lost {len(halves.lost)}, oversold {oversold}",
        f"{shops.kills} kills, {shops.stops} stops of {SHOPS} shops, {crowd.unanswered} calls without an answer",
        f"{decided} refunds by a person, {silent} charges never answered and never made",
        "faults: " + ", ".join(f"{name} {count}" for name, count in sorted(struck.items())),
        "events: " + ", ".join(f"{count} {what}" for what, count in sorted(halves.events.items())),
        ", ".join(laps),
    )
    return "\n  ".join(lines)
