"""The version before and this one on one database, both at work, through the migration and after it.

Everything is a process of its own, started by its command; buyers, provider and operators speak HTTP.
"""

import asyncio
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import servers
from tests.acceptance.released import ROOT, Version, released
from tests.checkouts import CARD, compare
from tests.deliveries import signature
from tests.ledgers import broken, fetchval
from tests.providers.worlds import Control
from tests.settlements import halves

API_KEY = "tsk_an-operator-of-both-versions-0123456789"
SECRET = "whsec_of_both_versions"
# Of each kind, by each version, beside the other.
ROUNDS = 12
# While tables are locked a request waits for the migration's second, and is told to come again at most once or twice.
LONGEST_SECONDS = 5.0
BUSY = (409, 503)
# What the version before says, once a connection, of a statement prepared before a table was given a column. This
# one runs such a batch again.
HICCUP = 500
MOST_HICCUPS = 100
TRIES = 20


@dataclass
class Load:
    """Buyers and operators of one version's API; what is asked there is asked again at the others."""

    name: str
    client: httpx2.AsyncClient
    others: list[httpx2.AsyncClient] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    replayed: int = 0
    hiccups: Counter[str] = field(default_factory=Counter)
    longest_seconds: float = 0.0
    _numbers: Any = field(default_factory=itertools.count)

    async def run(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for work in (self._operation, self._order, self._settlement):
                group.create_task(self._repeat(work, stopping))

    async def _repeat(self, work: Callable[[str], Any], stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            await work(f"{self.name}-{next(self._numbers)}")
            self.done[work.__name__.removeprefix("_")] += 1

    async def _operation(self, key: str) -> None:
        move = {"kind": "transfer", "debit": "world", "credit": "shop", "amount_micros": 7, "currency": "EUR"}
        first = await self._post("/v1/operations", move, key)
        for other in self.others:
            again = await self._sent(other, "/v1/operations", move, key)
            assert (again.status_code, again.content) == (201, first.content), again.text
            assert again.headers["idempotent-replayed"] == "true"
            self.replayed += 1

    async def _order(self, key: str) -> None:
        wish = {"sku": "lamp", "quantity": 1, "amount_micros": 5_000_000, "currency": "EUR"}
        order = (await self._post("/v1/orders", wish, key)).json()
        # Bought here, paid there: whoever answers next.
        payer = self.others[0] if self.others else self.client
        click = {"reservation_token": order["reservation_token"], "payment_method": CARD}
        paid = await self._sent(payer, f"/v1/orders/{order['id']}/pay", click, f"pay-{key}")
        assert paid.status_code in (201, 202), paid.text

    async def _settlement(self, key: str) -> None:
        wish = {"attribution_id": key, "squad_id": "squad", "gross_micros": 3_000_000, "currency": "EUR"}
        await self._post("/v1/settlements", {**wish, "destination": "acct_seller"}, key)

    async def _post(self, path: str, body: object, key: str) -> httpx2.Response:
        began = time.monotonic()
        answer = await self._sent(self.client, path, body, key)
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
        assert answer.status_code == 201, answer.text
        return answer

    async def _sent(self, client: httpx2.AsyncClient, path: str, body: object, key: str) -> httpx2.Response:
        """As a client does that was told to come again, or was told nothing: the same, under the same key."""
        for _ in range(TRIES):
            answer = await client.post(path, json=body, headers={"idempotency-key": key})
            if answer.status_code not in (*BUSY, HICCUP):
                break
            self.hiccups[str(client.base_url)] += answer.status_code == HICCUP
            await asyncio.sleep(0.2)
        return answer


async def test_the_version_before_and_this_one_work_on_one_database(
    embedded18: servers.Postgres,
    control: Control,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    dsn = embedded18.empty_database()
    environment = {
        "TALLY_DATABASE_URL": dsn,
        "TALLY_PORT": "0",
        "TALLY_HOME": str(tmp_path / "home"),
        "TALLY_API_KEY": API_KEY,
        "TALLY_PROVIDER": "stripe",
        "TALLY_STRIPE_API_KEY": "sk_test_of_both_versions",
        "TALLY_STRIPE_API_BASE": f"{control.url}/stripe",
        "TALLY_STRIPE_WEBHOOK_SECRET": SECRET,
        "TALLY_STRIPE_REQUESTS_PER_SECOND": "10000",
    }
    with (
        Version("before", released(tmp_path), environment, tmp_path) as before,
        Version("this", ROOT / "src", environment, tmp_path) as this,
    ):
        assert before.is_this()
        assert this.is_this()
        assert before.run("migrate").returncode == 0
        async with AsyncExitStack() as stack:
            old = Load("old", await stack.enter_async_context(await _serving(before)))
            await _prepare(old.client, control)
            stopping = asyncio.Event()
            loads = [asyncio.create_task(old.run(stopping))]
            await _until_done(old, {}, loads)

            # The migration, beside the version before at work.
            reached = Counter(old.done)
            migrated = await asyncio.to_thread(this.run, "migrate")
            assert migrated.returncode == 0, migrated.stderr
            assert old.done.total() > reached.total(), "nothing was written beside the migration"

            # And both beside each other.
            new = Load("new", await stack.enter_async_context(await _serving(this)), [old.client])
            old.others.append(new.client)
            loads.append(asyncio.create_task(new.run(stopping)))
            await asyncio.gather(_until_done(old, Counter(old.done), loads), _until_done(new, {}, loads))
            told = await _tell_again(control, new.client)
            stopping.set()
            await asyncio.gather(*loads)
            await _until_quiet(dsn)
            assert before.ended() + this.ended() == []
        assert min(old.replayed, new.replayed, told) >= ROUNDS
        hiccups = old.hiccups + new.hiccups
        assert (hiccups[str(new.client.base_url)], hiccups.total() <= MOST_HICCUPS) == (0, True), hiccups
        assert max(old.longest_seconds, new.longest_seconds) < LONGEST_SECONDS
        verified = this.run("verify")
        assert verified.returncode == 0, verified.stdout
        assert await broken(dsn) == {}
        await _books_match(dsn, control, old, new)
    record_property(
        "counted",
        f"upgrade: beside each other the version before did {dict(old.done)} and this one {dict(new.done)}; the "
        f"longest wait through the migration was {old.longest_seconds:.2f} s; the version before had "
        f"{hiccups.total()} statements to prepare again",
    )


async def _serving(version: Version) -> httpx2.AsyncClient:
    said = await version.start("serve", until=r"Webhooks ")
    await version.start("work", until=r"Ctrl-C finishes")
    address = re.search(r"API +(http://\S+)/v1", said)
    assert address is not None, said
    return httpx2.AsyncClient(
        base_url=address[1], timeout=60, headers={"authorization": f"Bearer {API_KEY}", "accept": "application/json"}
    )


async def _prepare(client: httpx2.AsyncClient, control: Control) -> None:
    for name in ("world", "shop"):
        made = await client.put(f"/v1/accounts/{name}", json={"currency": "EUR", "floor_micros": None})
        assert made.status_code == 201, made.text
    stocked = await client.put("/v1/skus/lamp", json={"stock": 1_000_000})
    assert stocked.status_code == 200, stocked.text
    endpoint = {"url": f"{client.base_url}/webhooks/stripe".replace("//webhooks", "/webhooks"), "secrets": [SECRET]}
    await asyncio.to_thread(control.call, "PUT", "endpoints/stripe", endpoint)


async def _until_done(load: Load, since: Any, loads: list["asyncio.Task[None]"]) -> None:
    """Each kind of work so often, since then."""
    async with asyncio.timeout(120):
        while min(load.done[kind] - since.get(kind, 0) for kind in ("operation", "order", "settlement")) < ROUNDS:
            for task in loads:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)


async def _tell_again(control: Control, receiver: httpx2.AsyncClient) -> int:
    """What the provider told the version before, told to this one as well: stored once."""
    events = await asyncio.to_thread(control.call, "GET", "events?dialect=stripe&limit=10000")
    for event in events:
        raw = json.dumps(event["body"]).encode()
        signed = {"stripe-signature": signature(raw, secret=SECRET), "content-type": "application/json"}
        answer = await receiver.post("/webhooks/stripe", content=raw, headers=signed)
        assert answer.status_code == 200, answer.text
    return len(events)


_OPEN = """
SELECT (SELECT count(*) FROM tally.webhook_events WHERE status IN ('UNPROCESSED', 'IN_PROCESSING'))
     + (SELECT count(*) FROM tally.settlement_state WHERE status IN ('pending', 'processing'))
     + (SELECT count(*) FROM tally.orders WHERE status = 'PENDING')
"""


async def _until_quiet(dsn: str) -> None:
    async with asyncio.timeout(90):
        while open_ := await fetchval(dsn, _OPEN):
            await asyncio.sleep(0.1)
    assert open_ == 0


async def _books_match(dsn: str, control: Control, old: Load, new: Load) -> None:
    """Each order is charged once and PAID, each payout made once: by the provider's own books."""
    entries = [entry for kind in ("payment_intent", "refund") for entry in control.made("stripe", kind)]
    charges = await compare(dsn, entries)
    assert (charges.is_equal, charges.undecided) == (True, []), charges
    assert charges.orders == {"PAID": old.done["order"] + new.done["order"]}
    payouts = await halves(dsn, control)
    assert payouts.is_equal, payouts
    paid = await fetchval(dsn, "SELECT count(*) FROM tally.settlement_state WHERE status = 'transferred'")
    assert paid == old.done["settlement"] + new.done["settlement"]
    moved = await fetchval(dsn, "SELECT balance_micros FROM tally.account WHERE id = 'shop'")
    assert moved == 7 * (old.done["operation"] + new.done["operation"])


def test_a_clone_without_the_version_before_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.acceptance.released.RELEASED", "no-such-commit")
    with pytest.raises(pytest.fail.Exception, match="git fetch --unshallow"):
        released(tmp_path)
