"""The payout service most people would write first: what the controls are run against.

It is honest work: it claims, it retries, it keeps a lease, it sends an idempotency key. What it lacks is what the
probes are about: a key made of the content, a fence, a not-after, a question before a repetition, a fee that the
database computes, a tenant in every WHERE.
"""

import asyncio
import hashlib
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, Self
from uuid import uuid4

import asyncpg

from tallystick import app, queries
from tallystick.probes.contender import GoOn, Hold, Pace, Point, account

SQL: Final = queries.load(__package__, "naive.sql")
_CENT_MICROS: Final = 10_000
_SERVER_ERROR: Final = 500

# It asks nobody between its claim and its write: a recovery of its is held where it would have asked.
_BEFORE_PAYING: Final[tuple[Point, ...]] = ("looked_up", "before_send")

Claims = Literal["select", "lease"]
Key = Literal["random", "content"]


class Naive:
    """One database's. `claims`: by a SELECT, or by a lease in one statement; `key`: by chance, or by concatenation."""

    kind: Literal["ours", "naive"] = "naive"

    def __init__(
        self, dsn: str, url: str, *, pace: Pace | None = None, claims: Claims = "select", key: Key = "random"
    ) -> None:
        """`url` is the simulator's."""
        self.dsn = dsn
        self.url = url
        self.pace = pace or Pace()
        self._claims = claims
        self._key = key

    async def __aenter__(self) -> Self:
        """Connect, and make the tables."""
        self.pool = await asyncpg.create_pool(self.dsn, min_size=1, max_size=4)
        await self.pool.execute(SQL["schema"])
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Disconnect."""
        await self.pool.close()

    async def create(self, names: Sequence[str]) -> None:
        """Promise a payout for each name."""
        for name in names:
            await self.wish({"attribution": name, "destination": account(name)})

    async def wish(self, request: Mapping[str, Any], *, between: Callable[[], Awaitable[None]] | None = None) -> int:
        """As its API would: what the caller says of fee and tenant is believed. `between`: once the fee is known."""
        gross = request.get("gross_micros", 10_000_000)
        fee = request.get("fee_micros")
        tenant, currency = request.get("tenant", "default"), request.get("currency", "EUR")
        if fee is None:
            fee = self.fee(gross, await self.pool.fetchrow(SQL["fee"], tenant, currency))
        if between is not None:
            await between()
        made: int = await self.pool.fetchval(
            SQL["create"],
            tenant,
            request["attribution"],
            request.get("squad", "squad"),
            gross,
            fee,
            gross - fee,
            currency,
            request.get("destination", "acct_naive"),
        )
        return made

    async def set_fee(self, tenant: str, currency: str, percent_ppm: int) -> None:
        """Whoever asks; and what is not paid yet gets the new fee as well."""
        await self.pool.execute(SQL["set_fee"], tenant, currency, percent_ppm)
        await self.pool.execute(SQL["reprice"], tenant, currency, percent_ppm)

    @staticmethod
    def fee(gross_micros: int, policy: asyncpg.Record | None) -> int:
        """In whole cents, with a float for the percentage; no policy is no fee."""
        if policy is None:
            return 0
        percent = policy["percent_ppm"] / 1_000_000
        return int(gross_micros / _CENT_MICROS * percent) * _CENT_MICROS

    async def tick(self, hold: Hold | None = None) -> None:
        """Pay what is pending, and what has been processing for too long."""
        hold = hold or GoOn()
        stuck_after = timedelta(seconds=self.pace.stuck_after)
        for row in await self.pool.fetch(SQL[self._claims], stuck_after):
            await self.pool.execute(SQL["processing"], row["id"])
            for point in _BEFORE_PAYING:
                await hold.at(point)
            try:
                transfer = await self._pay(row)
            except urllib.error.HTTPError as error:
                if error.code < _SERVER_ERROR:
                    await self.pool.execute(SQL["failed"], row["id"])
                continue
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                # No answer: it stays processing, and is tried again.
                continue
            await hold.at("after_answer")
            await self.pool.execute(SQL["transferred"], row["id"], transfer)

    async def set_back(self, names: Sequence[str]) -> None:
        """Nothing stands in the operator's way."""
        await self.pool.execute(SQL["set_pending"], list(names))

    async def renew_claims(self) -> None:
        """As `Ours` does."""
        await self.pool.execute(SQL["renew_claims"])

    async def pass_time(self, seconds: float) -> None:
        """As `Ours` does."""
        await self.pool.execute(SQL["age"], timedelta(seconds=seconds))

    async def _pay(self, row: asyncpg.Record) -> str:
        return await asyncio.to_thread(self._post, row, self._key_of(row))

    def _key_of(self, row: asyncpg.Record) -> str:
        if self._key == "random":
            return uuid4().hex
        return concatenated(row["attribution"], row["squad"], row["net_micros"])

    def _post(self, row: asyncpg.Record, key: str) -> str:
        form = {
            "amount": row["net_micros"] // _CENT_MICROS,
            "currency": row["currency"].lower(),
            "destination": row["destination"],
        }
        request = urllib.request.Request(  # noqa: S310 - the simulator's address
            f"{self.url}/stripe/v1/transfers",
            urllib.parse.urlencode(form).encode(),
            {"authorization": f"Bearer {app.SIMULATOR_API_KEY}", "idempotency-key": key},
        )
        with urllib.request.urlopen(request, timeout=self.pace.answer) as reply:  # noqa: S310
            return str(json.load(reply)["id"])


def concatenated(*fields: object) -> str:
    """The key as it is often made: a digest of the fields, one after the other."""
    return hashlib.sha256("".join(map(str, fields)).encode()).hexdigest()
