"""Probe 5: see, move or disturb what belongs to another tenant.

The intruder has keys of every role for his own tenant, and knows every name the victim uses: ids, keys, attributions,
squads, transfer ids. He wins when something comes back that only the victim's rows hold (a marker is in all of them),
when a name of the victim's means anything to him, or when anything of the victim's changes.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg
import msgspec

from tallystick import queries
from tallystick.access.store import ROLES
from tallystick.authority import approvals
from tallystick.database.explain.flow import explain
from tallystick.errors import require
from tallystick.keys.names import settlement_id
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected, transaction_name
from tallystick.movement import store as intent
from tallystick.movement.steps import Happened
from tallystick.probes import shop as shops
from tallystick.probes.ground import Books, Ground, broken_invariants, connected, open_clearing
from tallystick.probes.naive import SQL as NAIVE_SQL
from tallystick.probes.naive import Naive
from tallystick.probes.report import Outcome, Tried
from tallystick.probes.shop import Answer, Shop
from tallystick.probes.trying import judged
from tallystick.settlement import store as settlement
from tallystick.settlement.store import put_policy
from tallystick.settlement.terms import Policy
from tallystick.settlement.tick import store as settling

_SQL = queries.load(__package__, "cross_tenant_leak.sql")

# In every text of the victim's that the intruder has no reason to know.
_MARKER: Final = "v1ct1m"
_GROSS: Final = 12_340_000
_CREATED: Final = 201


class _Victim(msgspec.Struct, frozen=True, kw_only=True):
    """What the intruder has found out: names, and nothing of what they stand for."""

    tenant: Tenant
    settlements: Sequence[str]
    idempotency_keys: Sequence[str]
    provider_keys: Sequence[str]
    transactions: Sequence[str]
    transfer: str
    approval: str
    claimed: settling.ClaimedSettlement


class _Scene(msgspec.Struct, frozen=True, kw_only=True):
    """Where it happens."""

    dsn: str
    shop: Shop
    naive: Naive
    books: Books
    control_books: Books
    victim: _Victim
    intruder: Tenant

    async def ask(self, method: str, path: str, body: object = None, **more: Any) -> Answer:  # noqa: ANN401 - passed on
        return await self.shop.call(self.intruder.name, method, path, body, **more)


# Each returns what the intruder should not have got.
Attack = Callable[[_Scene], Awaitable[Iterable[object]]]


def _wish(number: int) -> dict[str, object]:
    """The victim's requests: the first is paid, the second disputed, the third fails, the last is being worked on."""
    closed = "closed" if number == 2 else ""  # noqa: PLR2004 - the third
    return {
        "attribution_id": f"a{number}",
        "squad_id": "amber",
        "gross_micros": _GROSS,
        "currency": "EUR",
        "destination": f"acct_{closed}{_MARKER}{number}",
    }


def _marked(seen: Iterable[object]) -> list[str]:
    return [text[:300] for text in map(repr, seen) if _MARKER in text]


# --- over the API


async def _read(scene: _Scene) -> list[object]:
    """No name of the victim's means anything to the intruder."""
    paths = [f"/v1/approvals/{scene.victim.approval}"]
    for name in scene.victim.settlements:
        bare = name.removeprefix("st_")
        spelled = (
            name,
            name.upper(),
            bare,
            str(settlement_id(name)),
            f"{name}%00",
            f"../{scene.victim.tenant.name}/{name}",
        )
        paths += [f"/v1/settlements/{one}" for one in spelled]
    paths += [f"/v1/operations/{name}" for name in scene.victim.transactions]
    for account in ("payable:EUR:amber", "fees:EUR", "clearing:EUR", "in_transit:EUR:simulator"):
        paths += [f"/v1/accounts/settlement:{account}{more}" for more in ("", "/entries")]
    answers = [(path, await scene.ask("GET", path, role=role)) for path in paths for role in ROLES]
    return [f"{path}: {answer}" for path, answer in answers if answer.is_good]


async def _list(scene: _Scene) -> list[str]:
    number = scene.victim.claimed.number
    paths = [
        "/v1/settlements?limit=500",
        "/v1/settlements?squad_id=amber",
        *(f"/v1/settlements?status={one}" for one in ("pending", "processing", "transferred", "failed", "disputed")),
        "/v1/settlements?stuck=true",
        *(f"/v1/settlements?cursor={cursor}" for cursor in (number, number + 1, 10**15)),
        "/v1/approvals",
        "/v1/settlement-policies",
        "/v1/accounts",
    ]
    answers = [await scene.ask("GET", path) for path in paths]
    refused = [answer for answer in answers if not answer.is_good]
    require(not refused, f"a list was refused, so that nothing was tried: {refused}")
    # Nobody has created anything here yet: what is listed is another's.
    return [repr(rows)[:300] for answer in answers for rows in answer.body.values() if rows]


async def _decide(scene: _Scene) -> list[object]:
    seen = []
    words = {"reason": "mine now", "evidence": "none"}
    for name in scene.victim.settlements:
        path = f"/v1/settlements/{name}"
        seen.append(await scene.ask("POST", f"{path}/dispute", words, role="admin"))
        for resolution in ("confirm", "retry", "write_off"):
            body = {**words, "resolution": resolution, "transfer_id": "tr_stolen"}
            seen.append(await scene.ask("POST", f"{path}/resolve", body, role="admin"))
    for decision in ("approve", "reject"):
        body = {"decision": decision, "reason": "mine now"}
        path = f"/v1/approvals/{scene.victim.approval}"
        seen += [await scene.ask("POST", path, body, role=role) for role in ("admin", "approver")]
    return [answer for answer in seen if answer.is_good]


async def _replay(scene: _Scene) -> list[object]:
    """The victim's own requests under the victim's own keys: they are new, and the intruder's."""
    # From here on the intruder pays too, out of an account of its own.
    await open_clearing(scene.shop.service.database, scene.intruder)
    leaks: list[object] = []
    for number, key in enumerate(scene.victim.idempotency_keys):
        answer = await scene.ask("POST", "/v1/settlements", _wish(number), headers={"idempotency-key": key})
        body = answer.body
        if (
            answer.status != _CREATED
            or body["id"] in scene.victim.settlements
            or body["idempotency_key"] in scene.victim.provider_keys
            or (body["status"], body["transfer_id"], body["fee_micros"]) != ("pending", None, 0)
        ):
            leaks.append(answer)
    return leaks


async def _collide(scene: _Scene) -> list[object]:
    """The intruder's payouts have the victim's attributions, squads, amounts and accounts: each is paid as well."""
    before = await scene.books.transfers()
    await scene.shop.service.settler.tick()
    after = await scene.books.transfers()
    accounts = [str(_wish(number)["destination"]) for number in (0, 1)]
    return [
        f"{account}: {before[account]} transfers before and {after[account]} after"
        for account in accounts
        if (before[account], after[account]) != (1, 2)
    ]


# --- from inside


async def _explain(scene: _Scene) -> list[str]:
    victim, database = scene.victim, scene.shop.service.database
    names = [*victim.settlements, *victim.provider_keys, victim.approval, victim.transfer, *victim.transactions]
    seen: list[object] = [(await explain(database, scene.intruder, name)).found for name in names]
    for name in victim.settlements:
        seen += [
            await settlement.read(database, scene.intruder, name),
            await settlement.events(database, scene.intruder, settlement_id(name) or UUID(int=0)),
        ]
    seen += [await intent.read(database, scene.intruder, bytes.fromhex(key)) for key in victim.provider_keys]
    seen += [
        await settlement.find_by_transfer(database, scene.intruder, victim.transfer),
        await approvals.read_approval(database, scene.intruder, victim.approval),
        await approvals.list_approvals(database, scene.intruder, most=100),
    ]
    return [repr(one)[:300] for one in seen if one and not isinstance(one, Rejected)]


async def _claim(scene: _Scene) -> list[object]:
    """Record a result under a claim that has the victim's numbers and the intruder's name in it."""
    forged = msgspec.structs.replace(scene.victim.claimed, tenant=scene.intruder)
    result = settling.SettlementResult(claimed=forged, verdict=Happened(transfer_id="tr_stolen"))
    async with scene.shop.service.database.writing() as connection:
        (is_recorded,) = await settling.record(connection, [result], by="intruder")
    return ["the result was recorded"] if is_recorded else []


async def _confirm(scene: _Scene) -> list[object]:
    """Call the victim's transfer one's own: a settlement of the intruder's, which failed, is confirmed with its id."""
    wish = _wish(0) | {"attribution_id": "own", "destination": "acct_closedown"}
    made = await scene.ask("POST", "/v1/settlements", wish)
    await scene.shop.service.settler.tick()
    path = f"/v1/settlements/{made.body['id']}"
    doubted = await scene.ask("POST", f"{path}/dispute", {"reason": "it was paid", "evidence": "none"})
    require(doubted.is_good, f"the intruder has nothing to confirm: {doubted}")
    body = {"resolution": "confirm", "reason": "seen", "evidence": "x", "transfer_id": scene.victim.transfer}
    answer = await scene.ask("POST", f"{path}/resolve", body)
    broken = await broken_invariants(scene.dsn)
    return [f"answered {answer.status}; {', '.join(broken)} no longer holds"] if broken else []


# --- at the database's prompt, as the role that reads for one tenant


async def _select(scene: _Scene) -> list[str]:
    """Everything there is, without a WHERE."""
    seen: list[object] = []
    async with connected(scene.dsn) as connection:
        for row in await connection.fetch(_SQL["relations"]):
            for statement in (f"SELECT * FROM tally.{row['name']}", f"TABLE ONLY tally.{row['name']}"):  # noqa: S608
                seen += await _as_reader(connection, scene.intruder, statement)
    require(seen, "the intruder does not even see his own rows")
    foreign = [one for one in seen if isinstance(one, dict) and one.get("tenant_id") == scene.victim.tenant.number]
    # His own replay of the victim's requests holds the victim's accounts, which he knew already.
    return [repr(one)[:300] for one in foreign]


async def _oracle(scene: _Scene) -> list[str]:
    """Have the database trip over a row of the victim's, so that the error tells what is in it; and its statistics."""
    seen: list[object] = []
    async with connected(scene.dsn) as connection:
        await connection.execute("ANALYZE")
        for statement in (
            "oracle_event",
            "oracle_approval",
            "oracle_policy",
            "statistics",
            "all_statistics",
            "sequence",
        ):
            seen += await _as_reader(connection, scene.intruder, _SQL[statement], tell_errors=True)
    return _marked(seen)


async def _write(scene: _Scene) -> list[object]:
    """Change the victim's rows, or move one's own over the wall."""
    victim, intruder = scene.victim.tenant.number, scene.intruder.number
    done: list[object] = []
    async with connected(scene.dsn) as connection:
        for row in await connection.fetch(_SQL["walled"]):
            table = row["name"]
            for statement in (
                f"UPDATE tally.{table} SET tenant_id = {intruder} WHERE tenant_id = {victim} RETURNING 1",  # noqa: S608
                f"DELETE FROM tally.{table} WHERE tenant_id = {victim} RETURNING 1",  # noqa: S608 - names of our own
                f"INSERT INTO tally.{table} SELECT * FROM tally.{table} RETURNING 1",  # noqa: S608
            ):
                done += await _as_reader(connection, scene.intruder, statement)
    return done


async def _as_reader(
    connection: asyncpg.Connection, tenant: Tenant, statement: str, *, tell_errors: bool = False
) -> list[object]:
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL ROLE tallystick_reader")
            await connection.execute("SELECT set_config('tally.tenant', $1, true)", str(tenant.number))
            return [dict(row) for row in await connection.fetch(statement)]
    except asyncpg.PostgresError as error:
        return [str(error)] if tell_errors else []


# --- the controls: the same without a tenant in the WHERE


async def _naive_read(scene: _Scene) -> list[str]:
    return _marked([dict(row) for row in await scene.naive.pool.fetch(NAIVE_SQL["read"], 1)])


async def _naive_list(scene: _Scene) -> list[str]:
    return _marked([dict(row) for row in await scene.naive.pool.fetch(NAIVE_SQL["list"])])


async def _naive_decide(scene: _Scene) -> list[object]:
    """What it changes is seen in the victim's row."""
    await scene.naive.pool.execute(NAIVE_SQL["decide"], 1, uuid4().hex)
    return []


async def _naive_replay(scene: _Scene) -> list[str]:
    return _marked([dict(row) for row in await scene.naive.pool.fetch(NAIVE_SQL["replay"], "victims-key")])


async def _naive_collide(scene: _Scene) -> list[object]:
    """Its provider key knows no tenant: the second of the two is never paid."""
    accounts = {tenant: f"acct_same{tenant}" for tenant in ("victim", "intruder")}
    for tenant, account in accounts.items():
        await scene.naive.wish({"tenant": tenant, "attribution": "same", "destination": account})
    await scene.naive.tick()
    counted = await scene.control_books.transfers()
    return [f"{tenant} was not paid" for tenant, account in accounts.items() if counted[account] != 1]


async def _naive_confirm(scene: _Scene) -> list[object]:
    await scene.naive.pool.execute(NAIVE_SQL["confirm"], "intruder", "tr_1")
    twice = await scene.naive.pool.fetchval(NAIVE_SQL["paying_two"])
    return [f"{twice} transfers pay two payouts"] if twice else []


async def _naive_select(scene: _Scene) -> list[str]:
    async with connected(scene.naive.dsn) as connection:
        return _marked(await _as_reader(connection, scene.intruder, NAIVE_SQL["list"]))


async def _naive_oracle(scene: _Scene) -> list[str]:
    async with connected(scene.naive.dsn) as connection:
        return _marked(await _as_reader(connection, scene.intruder, NAIVE_SQL["oracle"], tell_errors=True))


# In this order: at first the intruder has nothing of his own; the last ones need that something is paid.
WAYS: Final[Mapping[str, tuple[Attack, Attack]]] = {
    "read by id": (_read, _naive_read),
    "list": (_list, _naive_list),
    "dispute, resolve, approve": (_decide, _naive_decide),
    "explain, events, attempts": (_explain, _naive_read),
    "record under a forged claim": (_claim, _naive_decide),
    "raw SQL: errors and statistics that tell": (_oracle, _naive_oracle),
    "replay by idempotency key": (_replay, _naive_replay),
    "collide on attribution and squad": (_collide, _naive_collide),
    "raw SQL: everything without a WHERE": (_select, _naive_select),
    "raw SQL: write over the wall": (_write, _naive_decide),
    "confirm with a foreign transfer": (_confirm, _naive_confirm),
}


async def cross_tenant_leak(ground: Ground) -> tuple[Tried, ...]:
    """Every way."""
    await ground.clean()
    dsn = await ground.fresh_database()
    tried = []
    async with (
        shops.opened(dsn, ground.books.url) as shop,
        Naive(dsn, ground.control_books.url, key="content") as naive,
    ):
        scene = _Scene(
            dsn=dsn,
            shop=shop,
            naive=naive,
            books=ground.books,
            control_books=ground.control_books,
            intruder=await shop.tenant("intruder", pays=False),
            victim=await _set_up(shop, dsn),
        )
        await naive.pool.execute(NAIVE_SQL["victim"])
        for way, (attack, control) in WAYS.items():
            tried.append(
                Tried(
                    way=way,
                    attack=await judged(_attacked(scene, attack), otherwise=True),
                    control=await judged(_controlled(scene, control), otherwise=False),
                )
            )
    return tuple(tried)


async def _attacked(scene: _Scene, attack: Attack) -> Outcome:
    before = await _snapshot(scene)
    leaks = [str(leak) for leak in await attack(scene)]
    after = await _snapshot(scene)
    leaks += [f"tally.{table} of the victim has changed" for table in before if before[table] != after[table]]
    return Outcome(won=bool(leaks), told="; ".join(leaks[:5]) or "nothing came back, nothing changed")


async def _snapshot(scene: _Scene) -> dict[str, str]:
    """A digest of everything the victim has, table by table."""
    async with connected(scene.dsn) as connection:
        tables = [row["name"] for row in await connection.fetch(_SQL["walled"])]
        return {
            table: await connection.fetchval(_SQL["digest"].replace("{table}", table), scene.victim.tenant.number)
            for table in tables
        }


async def _controlled(scene: _Scene, control: Attack) -> Outcome:
    before = await scene.naive.pool.fetch(NAIVE_SQL["read"], 1)
    leaks = [str(leak) for leak in await control(scene)]
    if before != await scene.naive.pool.fetch(NAIVE_SQL["read"], 1):
        leaks.append("the victim's row has changed")
    return Outcome(won=bool(leaks), told="; ".join(leaks[:5]) or "nothing came back, nothing changed")


async def _set_up(shop: Shop, dsn: str) -> _Victim:
    """A tenant with a payout in every state, a policy, an open approval, and the marker wherever text is."""
    tenant = await shop.tenant("victim")
    database, name = shop.service.database, tenant.name
    await put_policy(database, tenant, "EUR", Policy(percent_ppm=100_000), by=f"{_MARKER} admin")
    keys = [f"victims-key-{number}" for number in range(4)]
    made: list[Any] = []
    for number, key in enumerate(keys):
        if number == len(keys) - 1:
            await shop.service.settler.tick()
        answer = await shop.call(name, "POST", "/v1/settlements", _wish(number), headers={"idempotency-key": key})
        require(answer.is_good, f"the victim could not be set up: {answer}")
        made.append(answer.body)
    words = {"reason": f"{_MARKER} reason", "evidence": f"{_MARKER} evidence"}
    doubted = await shop.call(name, "POST", f"/v1/settlements/{made[1]['id']}/dispute", words)
    asked = await shop.call(name, "POST", f"/v1/settlements/{made[2]['id']}/resolve", {**words, "resolution": "retry"})
    require(doubted.is_good and asked.is_good, f"the victim could not be set up: {doubted} {asked}")
    async with database.writing() as connection:
        token = uuid4()
        (claimed,) = await settling.claim(
            connection,
            "simulator",
            after=0,
            most=10,
            stuck_after=timedelta(days=1),
            token=token,
            by=f"{_MARKER} worker",
        )
        await settling.post_claims(connection, [claimed], token=token, by=f"{_MARKER} worker")
    async with connected(dsn) as connection:
        operations = await connection.fetch(_SQL["operations"], tenant.number)
        transfer = await connection.fetchval(_SQL["transfer"], tenant.number)
    return _Victim(
        tenant=tenant,
        settlements=[body["id"] for body in made],
        idempotency_keys=keys,
        provider_keys=[body["idempotency_key"] for body in made],
        transactions=[transaction_name(row["id"].bytes) for row in operations],
        transfer=transfer,
        approval=asked.body["approval"]["id"],
        claimed=claimed,
    )
