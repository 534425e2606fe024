"""What persons and late news decide about a settlement, on PostgreSQL. Each is one transaction with its postings."""

from typing import Any, Final, Literal
from uuid import UUID, uuid4

import asyncpg
import msgspec
from asyncpg.pgproto import pgproto

from tallystick import queries
from tallystick.authority import approvals
from tallystick.authority import store as authority
from tallystick.checkout import break_store as payment_break
from tallystick.commit.port import Contended, Lost
from tallystick.database.pool import Connection, Database
from tallystick.errors import InFlight, Unreachable, require
from tallystick.keys.derived import forms_of, reference_bounds, settlement_key
from tallystick.keys.names import settlement_id, settlement_name
from tallystick.ledger import batch
from tallystick.ledger.claims import Tenant
from tallystick.ledger.decisions import Decision, DecisionRefused
from tallystick.ledger.outcome import Rejected
from tallystick.ledger.store import PostgresTransaction
from tallystick.movement.evidence import Evidence
from tallystick.movement.steps import Disputed
from tallystick.providers.words import Movement, may_have_paid
from tallystick.settings import LIMITS
from tallystick.settlement.postings import Move, PayoutItem, PayoutMoved, postings
from tallystick.settlement.rules import Status, after_movement
from tallystick.settlement.store import SettlementView, unknown, view, wish_of
from tallystick.settlement.tick.store import add_events, count

_SQL = queries.load(__package__, "store.sql")
_ROUNDS: Final = 5

Resolution = Literal["confirm", "retry", "write_off"]


class ReviewView(msgspec.Struct, frozen=True, kw_only=True):
    """The settlement as a decision left it; `approval` where a second person must agree, or just did."""

    settlement: SettlementView
    approval: approvals.ApprovalView | None = None


async def dispute(connection: Connection, tenant: Tenant, decision: Decision, *, by: str) -> ReviewView | Rejected:
    """A person doubts a final state: its money goes back in transit until somebody decides."""
    row = await _locked(connection, tenant, decision.subject)
    if isinstance(row, Rejected):
        return row
    match row["status"]:
        case "transferred" | "failed" as status:
            await _note(connection, row, "disputed", by, decision)
            await count(connection, by, {"disputed": 1})
            return await _moved(connection, tenant, row, "disputed", _into_dispute(status), reason=decision.reason)
        case status:
            return Rejected(
                "not_disputable",
                f"{decision.subject} is {status}: only a transferred or failed settlement can be disputed.",
                _INSTEAD[status],
            )


async def resolve(
    connection: Connection, tenant: Tenant, decision: Decision, resolution: Resolution, *, by: str
) -> ReviewView | Rejected:
    """A person decides a disputed settlement; or asks for another try of a failed one, which needs a second person."""
    row = await _locked(connection, tenant, decision.subject)
    if isinstance(row, Rejected):
        return row
    if row["status"] == "failed" and resolution == "retry":
        return await _ask_for_generation(connection, row, decision, by=by)
    refusal = _unresolvable(row, decision, resolution)
    if refusal is not None:
        return refusal
    await _note(connection, row, f"resolved_{resolution}", by, decision)
    match resolution:
        case "confirm":
            transfer_id = decision.transfer_id or row["transfer_id"]
            await connection.execute(_SQL["hold_transfer"], row["provider"], transfer_id)
            if await connection.fetchval(_SQL["is_taken"], row["provider"], transfer_id, tenant.number, row["number"]):
                # Whose it is, is not said: it may be another tenant's.
                raise DecisionRefused(
                    Rejected(
                        "transfer_id_taken",
                        f"The transfer {transfer_id!r:.80} pays another settlement: one movement cannot pay two.",
                        "Look for the transfer that carries this settlement's own key. If the other was confirmed "
                        "under a wrong id, resolve that one first.",
                    )
                )
            return await _moved(connection, tenant, row, "transferred", "transferred", transfer_id=transfer_id)
        case "write_off":
            return await _moved(connection, tenant, row, "failed", "failed", reason="written_off")
        case "retry":
            return await _moved(connection, tenant, row, "processing", None)


async def decide(
    connection: Connection, tenant: Tenant, decision: Decision, *, is_approved: bool, by: str
) -> ReviewView | Rejected:
    """A second person agrees to another generation, or to a payout that is held; or does not."""
    asked = await approvals.lock_approval(connection, tenant, decision.subject)
    if asked is None:
        return approvals.approval_unknown(decision.subject)
    if asked["action"] not in approvals.OF_SETTLEMENTS:
        return approvals.approval_unknown(decision.subject)
    row = await _locked(connection, tenant, settlement_name(asked["subject"].bytes))
    require(not isinstance(row, Rejected), "an approval of a settlement that is not there")
    refusal = approvals.undecidable(asked, is_approved=is_approved, by=by)
    refusal = refusal or _unfitting(asked, row, is_approved=is_approved)
    if refusal is None and is_approved and asked["action"] == "new_generation":
        refusal = await _beyond_policy(connection, tenant, row, by)
    if refusal is not None:
        return refusal
    given = await approvals.settle_approval(connection, asked, is_approved=is_approved, by=by, reason=decision.reason)
    what = "generation" if asked["action"] == "new_generation" else "payout"
    if is_approved and what == "generation":
        reviewed = await _renewed(connection, tenant, row)
    elif what == "generation":
        reviewed = ReviewView(settlement=view(row))
    elif is_approved:
        reviewed = await _moved(connection, tenant, row, "pending", None)
    else:
        # Its money stays payable to the squad, as that of every payout that failed.
        reviewed = await _moved(connection, tenant, row, "failed", None, reason="approval_rejected")
    # After the key was ended: what came back must have come back since the approval before this one.
    await _note(connection, row, f"{what}_{given['decision']}", by, decision)
    return msgspec.structs.replace(reviewed, approval=approvals.seen(given))


async def _renewed(connection: Connection, tenant: Tenant, row: asyncpg.Record) -> ReviewView:
    await connection.execute(_SQL["end_key"], tenant.number, row["id"])
    generation = row["generation"] + 1
    key = settlement_key(
        tenant=tenant.name,
        currency=row["currency"],
        provider=row["provider"],
        attribution_id=row["attribution_id"],
        squad_id=row["squad_id"],
        net_micros=row["net_micros"],
        generation=generation,
    )
    await connection.execute(_SQL["renew"], tenant.number, row["number"], generation, key)
    moved = (await _moved(connection, tenant, row, "pending", None)).settlement
    # A life of this database that was lost may have sent this very generation.
    references = list(forms_of(key))
    await connection.execute(_SQL["begin_anew"], tenant.number, row["number"], row["provider"], references)
    return ReviewView(settlement=msgspec.structs.replace(moved, transfer_id=None))


async def _beyond_policy(connection: Connection, tenant: Tenant, row: asyncpg.Record, by: str) -> Rejected | None:
    """Another generation is paid under the policy of today. That it needs a second person, it has one."""
    judge, wish = authority.Judge(connection), wish_of(row)
    await judge.read(await authority.policy_of(connection, tenant), [(tenant.number, wish)])
    verdict = judge.judge(tenant.number, wish, by)
    return verdict if isinstance(verdict, Rejected) else None


async def observe(database: Database, provider: str, movement: Movement, *, alarm: str | None = None) -> str | None:
    """What the provider's books say of a movement now. The settlement that became disputed by it, if one did.

    An alarm about a movement that is nobody's here becomes a break: it is a person's all the same.
    """
    meant = await _meant(database, provider, movement)
    if not meant and alarm is not None:
        await payment_break.report_unknown(database, provider, movement, word=alarm)
    disputed = [await _observe_one(database, tenant, id_, key, movement, alarm=alarm) for tenant, id_, key in meant]
    return next(filter(None, disputed), None)


_INSTEAD: Final[dict[str, str]] = {
    "held": "It waits for a second person: approve or reject it.",
    "pending": "It has not been sent yet.",
    "processing": "It is being worked on; recovery decides it, or calls for a person.",
    "disputed": "It is disputed already: resolve it.",
}


def _into_dispute(status: Status) -> Move:
    return "disputed_again" if status == "transferred" else "disputed_after_all"


def _unresolvable(row: asyncpg.Record, decision: Decision, resolution: Resolution) -> Rejected | None:
    name, status = decision.subject, row["status"]
    if status != "disputed":
        return Rejected(
            "not_resolvable",
            f"{name} is {status}: only a disputed settlement can be resolved, and a failed one be retried.",
            "Dispute it first, if it is final and wrong.",
        )
    if resolution == "confirm" and not (decision.transfer_id or row["transfer_id"]):
        return Rejected(
            "transfer_id_missing",
            f"{name} would be confirmed without the provider's id of the transfer.",
            "Send transfer_id: the id that the provider's dashboard shows for it.",
        )
    if resolution == "retry" and row["needs_approval"] and not row["was_approved"]:
        return Rejected(
            "not_retryable",
            f"{name} needs a second person's consent, and nobody gave it: another try would send it without.",
            "Write it off and ask for another generation, which a second person can approve.",
        )
    if resolution == "retry" and (row["was_done"] or row["transfer_id"] is not None):
        return Rejected(
            "not_retryable",
            f"The provider has made {name} once, as {row['transfer_id'] or 'it said'}: another try could only find "
            "that, or pay it a second time.",
            "Confirm it; or, if it came back, write it off and ask for another generation.",
        )
    return None


def _still_there(row: asyncpg.Record) -> Rejected | None:
    """What the provider made, and has not shown to have come back, gets no other key."""
    if row["came_back"] or not (row["was_done"] or row["transfer_id"] is not None):
        return None
    return Rejected(
        "not_retryable",
        f"{settlement_name(row['id'].bytes)} was made by the provider as {row['transfer_id']}, and nothing of the "
        "provider's shows that it came back.",
        "Run `tally reconcile --repair`: when the provider's books show the loss, another generation can be asked for.",
    )


def _unfitting(asked: asyncpg.Record, row: asyncpg.Record, *, is_approved: bool) -> Rejected | None:
    """Why what was asked for can no longer be done."""
    if asked["action"] == "payout":
        is_open = row["status"] == "held"
    else:
        is_open = not is_approved or (row["status"] == "failed" and row["generation"] + 1 == asked["generation"])
    if not is_open:
        return Rejected(
            "not_resolvable",
            f"{settlement_name(row['id'].bytes)} is {row['status']} now, in generation {row['generation']}: what was "
            "asked for no longer fits.",
            "Reject this request; ask again when the settlement has failed.",
        )
    return _still_there(row) if is_approved else None


async def _ask_for_generation(
    connection: Connection, row: asyncpg.Record, decision: Decision, *, by: str
) -> ReviewView | Rejected:
    refusal = _still_there(row)
    if refusal is not None:
        return refusal
    asked, is_new = await approvals.ask_approval(
        connection,
        row["tenant_id"],
        row["id"],
        "new_generation",
        generation=row["generation"] + 1,
        reason=decision.reason,
        evidence=decision.evidence,
        by=by,
    )
    if is_new:
        await _note(connection, row, "generation_asked", by, decision)
    return ReviewView(settlement=view(row), approval=asked)


async def _moved(
    connection: Connection,
    tenant: Tenant,
    row: asyncpg.Record,
    status: Status,
    move: Move | None,
    *,
    reason: str | None = None,
    transfer_id: str | None = None,
) -> ReviewView:
    claims = []
    if move is not None:
        item = PayoutItem(settlement_name(row["id"].bytes), row["squad_id"], row["amount_micros"])
        claims = postings([PayoutMoved(tenant, move, row["provider"], row["currency"], item)], uuid4().hex)
    await connection.execute(
        _SQL["decide"],
        tenant.number,
        row["number"],
        status,
        reason,
        transfer_id,
        pgproto.UUID(claims[0].id) if claims else None,
    )
    if claims:
        for answer in await batch.run(PostgresTransaction(connection), claims, patient=True):
            if isinstance(answer, Rejected):
                raise DecisionRefused(answer)
    after = await _one(connection, "lock", tenant.number, row["id"])
    return ReviewView(settlement=view(after))


async def _one(connection: Connection, statement: str, *arguments: object) -> asyncpg.Record:
    (row,) = await connection.fetch(_SQL[statement], *arguments)
    return row


async def _locked(connection: Connection, tenant: Tenant, name: str) -> Any:  # noqa: ANN401 - a row, or a refusal
    id_ = settlement_id(name)
    row = None if id_ is None else await connection.fetchrow(_SQL["lock"], tenant.number, id_)
    return unknown(name) if row is None else row


async def _note(connection: Connection, row: asyncpg.Record, what: str, by: str, body: msgspec.Struct) -> None:
    await add_events(connection, [(row["tenant_id"], row["number"], what, by, msgspec.json.encode(body))])


async def _meant(database: Database, provider: str, movement: Movement) -> list[tuple[Tenant, UUID, bytes]]:
    found: dict[tuple[int, UUID], tuple[Tenant, UUID, bytes]] = {}
    async with database.owning() as connection:
        bounds = reference_bounds(movement.reference)
        rows = [] if bounds is None else await connection.fetch(_SQL["by_reference"], provider, *bounds)
        rows = [
            row
            for row in rows
            if movement.reference in forms_of(row["key"]) and may_have_paid(movement.id, row["destination"])
        ]
        rows += await connection.fetch(_SQL["by_transfer"], provider, movement.id)
    for row in rows:
        found.setdefault(
            (row["tenant_id"], row["id"]), (Tenant(row["tenant_id"], row["tenant"]), row["id"], row["key"])
        )
    return list(found.values())


async def _observe_one(
    database: Database, tenant: Tenant, id_: UUID, key: bytes, movement: Movement, *, alarm: str | None
) -> str | None:
    name = settlement_name(id_.bytes)
    for _ in range(_ROUNDS):
        try:
            async with database.writing() as connection:
                row = await _locked(connection, tenant, name)
                if alarm is not None and row["status"] == "processing":
                    # Recovery decides it in a moment, by books that may not show what the alarm is about.
                    raise InFlight(LIMITS.lock_wait_seconds)
                verdict = after_movement(
                    row["status"],
                    row["transfer_id"],
                    movement,
                    is_live_key=key == row["key"],
                    amount_micros=row["amount_micros"],
                    currency=row["currency"],
                    alarm=alarm,
                )
                if verdict is None:
                    await _note_return(connection, row, movement)
                    return None
                await _contradict(connection, tenant, row, verdict, movement)
        except Contended:
            continue
        except DecisionRefused as refused:
            # The money is gone from where it should be: only a person can say where to. The row stays as it is.
            await _only_note(database, tenant, name, movement, refused.refusal)
            return None
        except Lost as lost:
            raise Unreachable(str(lost)) from lost
        return name
    raise InFlight(LIMITS.lock_wait_seconds)


async def _note_return(connection: Connection, row: asyncpg.Record, movement: Movement) -> None:
    """A row that a person has in hand already learns, once, that its transfer came back."""
    is_back = movement.state in ("failed", "returned") and movement.id == row["transfer_id"]
    if is_back and row["status"] in ("failed", "disputed") and not row["came_back"]:
        seen = Evidence(what="came_back", found=movement.state, detail=_told(movement))
        await _note(connection, row, "came_back", "provider", seen)


async def _contradict(
    connection: Connection, tenant: Tenant, row: asyncpg.Record, verdict: Disputed, movement: Movement
) -> None:
    what = "came_back" if movement.state in ("failed", "returned") else "contradicted"
    seen = Evidence(what=what, found=verdict.reason, detail=_told(movement))
    await _note(connection, row, what, "provider", seen)
    move = None if row["status"] == "processing" else _into_dispute(row["status"])
    await _moved(connection, tenant, row, "disputed", move, reason=verdict.reason, transfer_id=verdict.transfer_id)
    counts = {"disputed": 1, what: 1}
    if verdict.is_double:
        counts["doubles"] = 1
    await count(connection, "provider", counts)


async def _only_note(database: Database, tenant: Tenant, name: str, movement: Movement, refusal: Rejected) -> None:
    async with database.writing() as connection:
        row = await _locked(connection, tenant, name)
        seen = Evidence(what="contradicted", found=refusal.code, detail=_told(movement))
        await _note(connection, row, "contradicted", "provider", seen)
        await count(connection, "provider", {"contradicted": 1, "doubles": 1})


def _told(movement: Movement) -> str:
    return f"{movement.provider} {movement.purpose} {movement.id}: {movement.status} ({movement.state})"
