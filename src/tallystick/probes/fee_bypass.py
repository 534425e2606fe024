"""Probe 2: have a payout made for less than the fee.

The attacker calls the API with an operator's key, chooses amounts and moments, and even types SQL as the engine's own
role. He wins when a payout of his exists whose fee is below what the tenant's policy takes of its gross amount, or for
which the provider paid out more than the rest; and when the ledger does not hold the fee that the row shows.

Each way has a tenant of its own, so that nothing of one is left for the next.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import asyncpg
import msgspec

from tallystick import queries
from tallystick.errors import require
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import transaction_name
from tallystick.probes import shop as shops
from tallystick.probes.ground import Books, Ground, connected
from tallystick.probes.naive import SQL as NAIVE_SQL
from tallystick.probes.naive import Naive
from tallystick.probes.report import Outcome, Tried
from tallystick.probes.shop import Shop
from tallystick.probes.trying import judged
from tallystick.settlement.postings import SettlementCreated, fees
from tallystick.settlement.store import put_policy
from tallystick.settlement.terms import Policy, first_key, identity

_SQL = queries.load(__package__, "fee_bypass.sql")

_CENT_MICROS: Final = 10_000
_GROSS: Final = 10_000_000
_WHOLE_PPM: Final = 1_000_000
_SERVER_ERROR: Final = 500
# 10 % and 0.25, at least 0.50; and 10 % alone, where the other would hide the effect.
_POLICY: Final = Policy(percent_ppm=100_000, fixed_micros=250_000, minimum_micros=500_000)
_SHARE: Final = Policy(percent_ppm=100_000)
# Just below ten cents: a tenth of it is less than one.
_PARTS, _PART = 20, 99_999
_QUARTER: Final = 250_000
_AMOUNT: Final = {"amount_micros": _QUARTER, "currency": "EUR"}
_BLOCKED_ROUNDS: Final = 200
_BLOCKED_SECONDS: Final = 0.01

_ODD_AMOUNTS: Final = (0, -1, -_GROSS, 1, 499_999, 500_000, 2**63 - 1, 2**63, 2**70, 1.5, 1e7, True, None, "10000000")
_ODD_CURRENCIES: Final = ("eur", "Eur", " EUR", "EUR ", "978", "\uff25\uff35\uff32", "EUR\x00", "")
_EXTRA_FIELDS: Final[Sequence[Mapping[str, object]]] = (
    {"fee_micros": 0},
    {"fee_micros": -1},
    {"fee": 0},
    {"net_micros": _GROSS},
    {"amount_micros": _GROSS},
    {"policy": {"percent_ppm": 0}},
    {"percent_ppm": 0},
    {"generation": 1},
    {"kind": "settlement.moved"},
)
_FOREIGN_FIELDS: Final[Sequence[Mapping[str, object]]] = ({"tenant": "free"}, {"tenant_id": 1}, {"tenant_name": "free"})


class _Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a way is tried: a tenant with the policy, and everything an attacker may touch."""

    shop: Shop
    naive: Naive
    dsn: str
    tenant: Tenant
    policy: Policy

    async def ask(self, name: str, **fields: object) -> shops.Answer:
        """Create a settlement as an operator would."""
        return await self.shop.call(self.tenant.name, "POST", "/v1/settlements", _request(name, **fields))

    async def set_policy(self, policy: Policy) -> None:
        await put_policy(self.shop.service.database, self.tenant, "EUR", policy, by="probe")


class _Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way to pay less. `whole_micros`: it was asked for as one amount, and is judged as such."""

    attack: Callable[[_Stage], Awaitable[None]]
    control: Callable[[_Stage], Awaitable[None]]
    policy: Policy = _POLICY
    # What the tenant's policy is while nothing has happened yet; None: he has none.
    before: Policy | None = _POLICY
    whole_micros: int | None = None


def _request(name: str, **fields: object) -> dict[str, Any]:
    return {
        "attribution_id": name,
        "squad_id": "squad",
        "gross_micros": _GROSS,
        "currency": "EUR",
        "destination": f"acct_{name}",
        **fields,
    }


# --- what the caller says


async def _fee_in_request(stage: _Stage) -> None:
    for number, extra in enumerate((*_EXTRA_FIELDS, *_FOREIGN_FIELDS)):
        await stage.ask(f"{stage.tenant.name}x{number}", **extra)
        item = _request(f"{stage.tenant.name}y{number}", idempotency_key=f"batch-{number}", **extra)
        await stage.shop.call(stage.tenant.name, "POST", "/v1/settlements/batch", {"settlements": [item]})


async def _naive_fee_in_request(stage: _Stage) -> None:
    await stage.naive.wish({"tenant": stage.tenant.name, "attribution": "fee", "fee_micros": 0})


async def _tenant_in_request(stage: _Stage) -> None:
    for number, extra in enumerate(_FOREIGN_FIELDS):
        await stage.ask(f"{stage.tenant.name}x{number}", **extra)
    headers = {"x-tenant": "free", "x-tenant-id": "1", "tally-tenant": "free"}
    await stage.shop.call(
        stage.tenant.name, "POST", "/v1/settlements", _request(f"{stage.tenant.name}h"), headers=headers
    )


async def _naive_tenant_in_request(stage: _Stage) -> None:
    # Its fee is looked up for the tenant the body names; the payout is the caller's own.
    made = await stage.naive.wish({"tenant": "free", "attribution": "foreign"})
    await stage.naive.pool.execute(NAIVE_SQL["belongs_to"], made, stage.tenant.name)


async def _odd_amounts(stage: _Stage) -> None:
    for number, gross in enumerate(_ODD_AMOUNTS):
        await stage.ask(f"{stage.tenant.name}x{number}", gross_micros=gross)


async def _naive_odd_amounts(stage: _Stage) -> None:
    await stage.naive.wish({"tenant": stage.tenant.name, "attribution": "negative", "gross_micros": -_GROSS + 5})
    await stage.naive.wish({"tenant": stage.tenant.name, "attribution": "huge", "gross_micros": 2**63 - 1})


async def _in_parts(stage: _Stage) -> None:
    for number in range(_PARTS):
        answer = await stage.ask(f"{stage.tenant.name}x{number}", gross_micros=_PART)
        require(answer.is_good, f"a part was refused, so that nothing was avoided: {answer}")


async def _naive_in_parts(stage: _Stage) -> None:
    for number in range(_PARTS):
        await stage.naive.wish({"tenant": stage.tenant.name, "attribution": f"part{number}", "gross_micros": _PART})


async def _odd_currencies(stage: _Stage) -> None:
    """Spellings that have no policy, and a currency that has only the one of all others."""
    await put_policy(stage.shop.service.database, stage.tenant, "", _SHARE, by="probe")
    await stage.ask(f"{stage.tenant.name}usd", currency="USD")
    for number, currency in enumerate(_ODD_CURRENCIES):
        await stage.ask(f"{stage.tenant.name}x{number}", currency=currency)


async def _naive_odd_currencies(stage: _Stage) -> None:
    for currency in ("eur", "EUR ", "USD"):
        await stage.naive.wish({"tenant": stage.tenant.name, "attribution": currency, "currency": currency})


# --- when he says it


async def _lowered_later(stage: _Stage) -> None:
    await stage.ask(f"{stage.tenant.name}x")
    await stage.set_policy(Policy())
    await stage.ask(f"{stage.tenant.name}x")
    await stage.shop.service.settler.tick()


async def _naive_lowered_later(stage: _Stage) -> None:
    await stage.naive.wish({"tenant": stage.tenant.name, "attribution": "early"})
    await stage.naive.set_fee(stage.tenant.name, "EUR", 0)
    await stage.naive.tick()


async def _raised_meanwhile(stage: _Stage) -> None:
    """The policy comes into force after the creation has read it and before it writes; forced by a lock between."""
    name = stage.tenant.name
    await stage.shop.call(
        name, "PUT", "/v1/accounts/settlement:clearing:EUR", {"currency": "EUR", "floor_micros": None}, role="admin"
    )
    async with connected(stage.dsn) as connection:
        holding = connection.transaction()
        await holding.start()
        held = await connection.fetch(_SQL["hold_clearing"], stage.tenant.number)
        require(len(held) == 1, "there is nothing to hold the creation by")
        creating = asyncio.create_task(stage.ask(f"{name}x"))
        await _until_blocked(connection)
        await stage.set_policy(_POLICY)
        await holding.rollback()
        answer = await creating
    require(answer.status < _SERVER_ERROR, f"the caller is not told what happened: {answer}")


async def _until_blocked(connection: asyncpg.Connection) -> None:
    for _ in range(_BLOCKED_ROUNDS):
        if await connection.fetchval(_SQL["is_somebody_blocked"]):
            return
        await asyncio.sleep(_BLOCKED_SECONDS)
    raise RuntimeError("the attack did not happen: nobody came to the lock")


async def _naive_raised_meanwhile(stage: _Stage) -> None:
    async def raise_it() -> None:
        await stage.naive.set_fee(stage.tenant.name, "EUR", _POLICY.percent_ppm)

    await stage.naive.wish({"tenant": stage.tenant.name, "attribution": "raced"}, between=raise_it)


# --- with more rights than he should need


async def _by_role(stage: _Stage) -> None:
    for role in ("operator", "approver", "viewer", "auditor"):
        for currency in ("EUR", "default"):
            path = f"/v1/settlement-policies/{currency}"
            await stage.shop.call(stage.tenant.name, "PUT", path, {"percent_ppm": 0}, role=role)
    await stage.ask(f"{stage.tenant.name}x")


async def _naive_by_role(stage: _Stage) -> None:
    await stage.naive.set_fee(stage.tenant.name, "EUR", 0)
    await stage.naive.wish({"tenant": stage.tenant.name, "attribution": "free"})


async def _by_ledger(stage: _Stage) -> None:
    """Take back by ordinary operations what the creation posted."""
    name = stage.tenant.name
    made = await stage.ask(f"{name}x")
    require(made.is_good, f"there is nothing to take back: {made}")
    await stage.shop.call(name, "PUT", "/v1/accounts/own", {"currency": "EUR", "floor_micros": None})
    payable = "settlement:payable:EUR:squad"
    for source, target in ((fees("EUR"), payable), ("own", payable), (payable, "own")):
        legs = [
            {"account": source, "amount_micros": -_QUARTER, "currency": "EUR"},
            {"account": target, "amount_micros": _QUARTER, "currency": "EUR"},
        ]
        for operation in (
            {"kind": "post", "legs": legs},
            {"kind": "transfer", "debit": source, "credit": target, **_AMOUNT},
            {"kind": "topup", "account": target, "source": source, **_AMOUNT},
            {"kind": "payout", "account": source, "destination": target, **_AMOUNT},
            {"kind": "fee", "account": source, "revenue": target, **_AMOUNT},
            {"kind": "hold", "account": source, "held": target, **_AMOUNT},
        ):
            await stage.shop.call(name, "POST", "/v1/operations", operation)
    await stage.shop.service.settler.tick()
    async with connected(stage.dsn) as connection:
        posted = [
            transaction_name(row["id"].bytes) for row in await connection.fetch(_SQL["posted"], stage.tenant.number)
        ]
    for transaction in posted:
        await stage.shop.call(name, "POST", "/v1/operations", {"kind": "refund", "transaction": transaction})
        await stage.shop.call(name, "POST", "/v1/operations", {"kind": "release", "hold": transaction, "to": "own"})


async def _naive_by_ledger(stage: _Stage) -> None:
    made = await stage.naive.wish({"tenant": stage.tenant.name, "attribution": "undone"})
    await stage.naive.pool.execute(NAIVE_SQL["give_back"], made, _QUARTER)


async def _by_insert(stage: _Stage) -> None:
    """Rows with good keys and bad fees, alone and hidden among good ones."""
    right = _due(_GROSS, _POLICY)
    for number, given in enumerate(
        (
            [(_GROSS, 0, _GROSS)],
            [(_GROSS, -_GROSS, 2 * _GROSS)],
            [(_GROSS, right, _GROSS)],
            [(_GROSS, right - 1, _GROSS - right + 1)],
            # Together they hold the right sum.
            [(_GROSS, right, _GROSS - right), (_GROSS, 0, _GROSS), (_GROSS, 2 * right, _GROSS - 2 * right)],
            [(-_GROSS, 0, -_GROSS)],
        )
    ):
        rows = [_row(stage, f"{stage.tenant.name}i{number}n{row}", *one) for row, one in enumerate(given)]
        await _refused(stage.dsn, _SQL["insert"], *(list(column) for column in zip(*rows, strict=True)))


def _row(stage: _Stage, name: str, gross: int, fee: int, net: int) -> tuple[object, ...]:
    wish = SettlementCreated(**_request(name, gross_micros=gross, provider="simulator"))
    key = first_key(stage.tenant.name, wish, net)
    return stage.tenant.number, identity(stage.tenant.name, name, "squad"), name, gross, fee, net, key


async def _naive_by_insert(stage: _Stage) -> None:
    await stage.naive.wish({"tenant": stage.tenant.name, "attribution": "typed", "fee_micros": 0})


async def _by_update(stage: _Stage) -> None:
    made = await stage.ask(f"{stage.tenant.name}x")
    require(made.is_good, f"there is nothing to change: {made}")
    for statement in (
        "update_fee",
        "update_gross",
        "update_net",
        "update_amount",
        "update_key",
        "update_currency",
        "update_tenant",
        "upsert",
    ):
        await _refused(stage.dsn, _SQL[statement], stage.tenant.number)


async def _naive_by_update(stage: _Stage) -> None:
    made = await stage.naive.wish({"tenant": stage.tenant.name, "attribution": "edited"})
    await stage.naive.pool.execute(NAIVE_SQL["edit_fee"], made)


async def _by_policy_row(stage: _Stage) -> None:
    """Make the policy vanish for a moment, without a trace in the journal."""
    for number, statement in enumerate(
        ("delete_policy", "truncate_policies", "move_policy", "rename_policy", "hide_policy")
    ):
        async with connected(stage.dsn) as connection:
            traces = await connection.fetchval(_SQL["policy_traces"])
            try:
                await connection.execute(_SQL[statement].replace("$1", str(stage.tenant.number)))
            except asyncpg.PostgresError:
                continue
            if await connection.fetchval(_SQL["policy_traces"]) != traces:
                # Whoever looks will see it, and who did it.
                await stage.set_policy(_POLICY)
                continue
        await stage.ask(f"{stage.tenant.name}x{number}")
        await stage.set_policy(_POLICY)


async def _naive_by_policy_row(stage: _Stage) -> None:
    await stage.naive.pool.execute(NAIVE_SQL["delete_fee"], stage.tenant.name)
    await stage.naive.wish({"tenant": stage.tenant.name, "attribution": "unpoliced"})


async def _refused(dsn: str, statement: str, *arguments: object) -> None:
    """Try it as the engine's own role. Whether it was refused is seen in the rows, not believed."""
    async with connected(dsn) as connection:
        try:
            await connection.execute(statement, *arguments)
        except asyncpg.PostgresError:
            return


WAYS: Final[Mapping[str, _Way]] = {
    "fee in the request": _Way(attack=_fee_in_request, control=_naive_fee_in_request),
    "another tenant in the request": _Way(attack=_tenant_in_request, control=_naive_tenant_in_request),
    "odd amounts": _Way(attack=_odd_amounts, control=_naive_odd_amounts),
    "in small parts": _Way(
        attack=_in_parts, control=_naive_in_parts, policy=_SHARE, before=_SHARE, whole_micros=_PARTS * _PART
    ),
    "another currency": _Way(attack=_odd_currencies, control=_naive_odd_currencies, policy=_SHARE, before=_SHARE),
    "policy lowered before the payout": _Way(attack=_lowered_later, control=_naive_lowered_later),
    "policy raised during the creation": _Way(attack=_raised_meanwhile, control=_naive_raised_meanwhile, before=None),
    "policy changed with a lesser role": _Way(attack=_by_role, control=_naive_by_role),
    "undone in the ledger": _Way(attack=_by_ledger, control=_naive_by_ledger),
    "inserted by hand": _Way(attack=_by_insert, control=_naive_by_insert),
    "updated by hand": _Way(attack=_by_update, control=_naive_by_update),
    "policy removed by hand": _Way(attack=_by_policy_row, control=_naive_by_policy_row),
}


async def fee_bypass(ground: Ground) -> tuple[Tried, ...]:
    """Every way."""
    await ground.clean()
    dsn = await ground.fresh_database()
    tried = []
    async with (
        shops.opened(dsn, ground.books.url) as shop,
        Naive(dsn, ground.control_books.url) as naive,
    ):
        for number, (name, way) in enumerate(WAYS.items()):
            tenant = await shop.tenant(f"fee{number}")
            stage = _Stage(shop=shop, naive=naive, dsn=dsn, tenant=tenant, policy=way.policy)
            if way.before is not None:
                await stage.set_policy(way.before)
                await naive.set_fee(tenant.name, "EUR", way.before.percent_ppm)
            tried.append(
                Tried(
                    way=name,
                    attack=await judged(_attacked(stage, way, ground.books), otherwise=True),
                    control=await judged(_controlled(stage, way), otherwise=False),
                )
            )
    return tuple(tried)


def _due(gross_micros: int, policy: Policy) -> int:
    """What the policy takes, worked out here once more."""
    return max(policy.minimum_micros, policy.fixed_micros + gross_micros * policy.percent_ppm // _WHOLE_PPM)


async def _attacked(stage: _Stage, way: _Way, books: Books) -> Outcome:
    await way.attack(stage)
    async with connected(stage.dsn) as connection:
        rows = await connection.fetch(_SQL["settlements"], stage.tenant.number)
        earned = await connection.fetchval(_SQL["fees"], stage.tenant.number)
    paid = await books.amounts()
    faults = _too_cheap(rows, way)
    taken = sum(row["fee_micros"] for row in rows)
    if earned != taken:
        faults.append(f"the ledger holds {earned} of fees, and the rows show {taken}")
    faults += [
        f"{row['attribution_id']} was paid {paid[row['destination']]} cents of {row['gross_micros']} micros"
        for row in rows
        if paid[row["destination"]] * _CENT_MICROS > row["gross_micros"] - _due(row["gross_micros"], way.policy)
    ]
    return Outcome(won=bool(faults), told="; ".join(faults) or f"{len(rows)} payouts, each with its whole fee")


async def _controlled(stage: _Stage, way: _Way) -> Outcome:
    await way.control(stage)
    rows = await stage.naive.pool.fetch(NAIVE_SQL["fees"], stage.tenant.name)
    # Its policy has a share alone.
    faults = _too_cheap(rows, msgspec.structs.replace(way, policy=_SHARE))
    return Outcome(won=bool(faults), told="; ".join(faults) or f"{len(rows)} payouts, each with its whole fee")


def _too_cheap(rows: Sequence[Any], way: _Way) -> list[str]:
    if way.whole_micros is not None:
        # Each part may keep less than a micro of what one amount would have had to give.
        taken, due = sum(row["fee_micros"] for row in rows), _due(way.whole_micros, way.policy) - len(rows)
        return [f"{len(rows)} parts gave {taken}, and the whole would have given {due}"] if taken < due else []
    return [
        f"{row['attribution_id']} gave {row['fee_micros']} of {row['gross_micros']}"
        for row in rows
        if row["fee_micros"] < _due(int(row["gross_micros"]), way.policy)
        or row["net_micros"] != row["gross_micros"] - row["fee_micros"]
    ]
