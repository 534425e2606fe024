"""What persons and late news decide about a settlement, on PostgreSQL. Each is one transaction with its postings."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID, uuid4

import asyncpg
import msgspec
from asyncpg.pgproto import pgproto

from tallystick import queries
from tallystick.core.author import is_somebody, person_of
from tallystick.core.idempotency import Tenant
from tallystick.core.keys import forms_of, operation_id, settlement_key
from tallystick.core.operation import differing_fields
from tallystick.core.outcome import Rejected
from tallystick.core.provider import Movement
from tallystick.core.settlement import Disputed, Status, after_movement, settlement_id, settlement_name
from tallystick.core.settlement_ledger import Item, Move, Moved, postings
from tallystick.engine import batch
from tallystick.engine.port import Contended, Lost, told_plainly
from tallystick.errors import InFlight, Unreachable, require
from tallystick.settings import LIMITS
from tallystick.store import authority, payment_break
from tallystick.store.database import Connection, Database
from tallystick.store.operation import PostgresTransaction
from tallystick.store.settlement import LedgerRefused, SettlementView, approval_name, unknown, view, wish_of
from tallystick.store.settling import Evidence, add_events, count

_SQL = queries.load(__package__, "settlement_review.sql")
_ROUNDS: Final = 5
# Version and variant bits of a UUID replace bits of the key from here on.
_INTACT_BYTES: Final = 6

Resolution = Literal["confirm", "retry", "write_off"]
Action = Literal["new_generation", "payout", "refund_confirm", "refund_failed", "refund_keep"]
# The others' subject is an order; their own flow decides them.
_OF_SETTLEMENTS: Final = ("new_generation", "payout")


class ApprovalView(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for a second person, or was decided by one: a payout, another generation of one, or a refund.

    `settlement`, or `order`, is what it is about.
    """

    id: str
    settlement: str | None
    order: str | None
    action: Action
    generation: int
    reason: str
    evidence: str
    asked_by: str
    asked_at: datetime
    decision: Literal["approved", "rejected"] | None
    decided_by: str | None
    decided_at: datetime | None
    decided_why: str | None


class ReviewView(msgspec.Struct, frozen=True, kw_only=True):
    """The settlement as a decision left it; `approval` where a second person must agree, or just did."""

    settlement: SettlementView
    approval: ApprovalView | None = None


class RefundReviewView(msgspec.Struct, frozen=True, kw_only=True):
    """What a second person decided about a refund; its order is named in the approval."""

    approval: ApprovalView


class Reviewed(msgspec.Struct, frozen=True):
    """A decision that is durable. `body` is what every replay under its key returns."""

    body: bytes
    is_replayed: bool


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person asked for, in the form its key is bound to."""

    subject: str
    action: str
    reason: str
    evidence: str = ""
    transfer_id: str | None = None


Act = Callable[[Connection], Awaitable[msgspec.Struct | Rejected]]


async def once(database: Database, tenant: Tenant, key: str, decision: msgspec.Struct, act: Act) -> Reviewed | Rejected:
    """Run a decision once under its key, and keep the answer with it."""
    request = msgspec.json.encode(decision, order="deterministic")
    with told_plainly():
        for _ in range(_ROUNDS):
            try:
                async with database.writing() as connection:
                    known = await _known(connection, tenant, key, request)
                    if known is not None:
                        return known
                    done = await act(connection)
                    if isinstance(done, Rejected):
                        return done
                    body = msgspec.json.encode(done)
                    await connection.execute(_SQL["keep_reply"], tenant.number, key, request, body)
                return Reviewed(body, is_replayed=False)
            except LedgerRefused as refused:
                return refused.refusal
            except Contended:
                continue
            except asyncpg.PostgresError as error:
                # The tenant's policy was changed after we read it.
                if error.sqlstate != authority.OTHER_POLICY:
                    raise
    raise InFlight(LIMITS.lock_wait_seconds)


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
                raise LedgerRefused(
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
    asked = await lock_approval(connection, tenant, decision.subject)
    if asked is None:
        return approval_unknown(decision.subject)
    if asked["action"] not in _OF_SETTLEMENTS:
        return approval_unknown(decision.subject)
    row = await _locked(connection, tenant, settlement_name(asked["subject"].bytes))
    require(not isinstance(row, Rejected), "an approval of a settlement that is not there")
    refusal = undecidable(asked, is_approved=is_approved, by=by) or _unfitting(asked, row, is_approved=is_approved)
    if refusal is None and is_approved and asked["action"] == "new_generation":
        refusal = await _beyond_policy(connection, tenant, row, by)
    if refusal is not None:
        return refusal
    given = await settle_approval(connection, asked, is_approved=is_approved, by=by, reason=decision.reason)
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
    return msgspec.structs.replace(reviewed, approval=_approval(given))


async def lock_approval(connection: Connection, tenant: Tenant, name: str) -> asyncpg.Record | None:
    """What a second person is asked about, locked; None: there is no such approval."""
    id_ = approval_id(name)
    return None if id_ is None else await connection.fetchrow(_SQL["lock_approval"], tenant.number, id_)


async def settle_approval(
    connection: Connection, asked: asyncpg.Record, *, is_approved: bool, by: str, reason: str
) -> asyncpg.Record:
    """Write down what the second person decided, once; the database compares the two persons again."""
    verdict = "approved" if is_approved else "rejected"
    return await _one(connection, "approve", asked["tenant_id"], asked["id"], verdict, by, reason)


async def decided(
    connection: Connection, asked: asyncpg.Record, *, is_approved: bool, by: str, reason: str
) -> RefundReviewView:
    """`settle_approval`, as the caller is told of it."""
    given = await settle_approval(connection, asked, is_approved=is_approved, by=by, reason=reason)
    return RefundReviewView(approval=_approval(given))


async def ask_approval(
    connection: Connection, tenant: Tenant, subject: UUID, action: Action, *, reason: str, evidence: str, by: str
) -> ApprovalView:
    """Ask a second person about a subject; asked before and not decided yet, it is that very approval."""
    waiting = await connection.fetchrow(_SQL["open_approval"], tenant.number, subject, action)
    if waiting is None:
        given = (tenant.number, uuid4(), subject, action, 0, reason, evidence, by)
        waiting = await _one(connection, "ask", *given)
    return _approval(waiting)


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


async def read_approval(database: Database, tenant: Tenant, name: str) -> ApprovalView | Rejected:
    """One approval by its id."""
    id_ = approval_id(name)
    if id_ is None:
        return approval_unknown(name)
    async with database.reading(tenant.number) as connection:
        row = await connection.fetchrow(_SQL["approval"], tenant.number, id_)
    return approval_unknown(name) if row is None else _approval(row)


async def list_approvals(database: Database, tenant: Tenant, *, most: int) -> list[ApprovalView]:
    """Those that wait for a decision, oldest first."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["approvals"], tenant.number, most)
    return [_approval(row) for row in rows]


def approval_id(name: str) -> UUID | None:
    """The id behind a written one; None when it is not one of ours."""
    return settlement_id("st_" + name.removeprefix("ap_")) if name.startswith("ap_") else None


def approval_unknown(name: str) -> Rejected:
    """The refusal for an approval this tenant does not have."""
    return Rejected(
        "approval_unknown",
        f"There is no approval {name!r:.80}.",
        "Use the id that the request for it returned (ap_ and 32 hexadecimal digits).",
    )


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
            f"{name} needs a second person's leave, and nobody gave it: another try would send it without.",
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


def undecidable(asked: asyncpg.Record, *, is_approved: bool, by: str) -> Rejected | None:
    """Why this person cannot decide it: it is decided, or he is no second one."""
    name = approval_name(asked["id"])
    if asked["decision"] is not None:
        return Rejected(
            "already_decided",
            f"{name} was {asked['decision']} by {asked['decided_by']} at {asked['decided_at']:%Y-%m-%d %H:%M} UTC.",
            "Nothing remains to be decided.",
        )
    return _not_second(name, asked["asked_by"], asked["asker"], by, is_approved=is_approved)


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


def _not_second(name: str, asked_by: str, asker: str | None, by: str, *, is_approved: bool) -> Rejected | None:
    """A second person is another person, not another key. `asker`: whose key asked, where only the key is on record."""
    first, second = asker or person_of(asked_by), person_of(by)
    if first == second:
        return Rejected(
            "second_person_needed",
            f"{second} asked for {name} and cannot decide it, with whatever key.",
            "Have another person decide, with a key of his own name.",
        )
    nobody = [one for one in (first, second) if not is_somebody(one)]
    if is_approved and nobody:
        return Rejected(
            "second_person_needed",
            f"{name} was asked for by {asked_by} and would be approved by {by}: {nobody[0]} is no person's name, so "
            "that both may be the same person.",
            "Approve with a key that was made for a person (`tally keys create --for NAME --role approver`). If the "
            "key that asked has no name, reject this and ask again with one that has.",
        )
    return None


async def _ask_for_generation(
    connection: Connection, row: asyncpg.Record, decision: Decision, *, by: str
) -> ReviewView | Rejected:
    tenant = row["tenant_id"]
    refusal = _still_there(row)
    if refusal is not None:
        return refusal
    waiting = await connection.fetchrow(_SQL["open_approval"], tenant, row["id"], "new_generation")
    if waiting is None:
        waiting = await _one(
            connection,
            "ask",
            tenant,
            uuid4(),
            row["id"],
            "new_generation",
            row["generation"] + 1,
            decision.reason,
            decision.evidence,
            by,
        )
        await _note(connection, row, "generation_asked", by, decision)
    return ReviewView(settlement=view(row), approval=_approval(waiting))


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
        item = Item(settlement_name(row["id"].bytes), row["squad_id"], row["amount_micros"])
        claims = postings([Moved(tenant, move, row["provider"], row["currency"], item)], uuid4().hex)
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
                raise LedgerRefused(answer)
    after = await _one(connection, "lock", tenant.number, row["id"])
    return ReviewView(settlement=view(after))


async def _known(connection: Connection, tenant: Tenant, key: str, request: bytes) -> Reviewed | Rejected | None:
    row = await connection.fetchrow(_SQL["reply"], tenant.number, key)
    if row is not None and row["request"] == request:
        return Reviewed(row["body"], is_replayed=True)
    fields = () if row is None else differing_fields(row["request"], request)
    is_used = row is not None or await connection.fetchval(
        _SQL["is_operation"], tenant.number, pgproto.UUID(operation_id(tenant.name, key))
    )
    if not is_used:
        return None
    return Rejected(
        "key_reused",
        f"The idempotency key {key!r} was used for another request.",
        "Use a new key for a new request, or repeat the first one unchanged.",
        fields,
    )


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
        bounds = key_bounds(movement.reference)
        rows = [] if bounds is None else await connection.fetch(_SQL["by_reference"], provider, *bounds)
        rows = [row for row in rows if movement.reference in forms_of(row["key"])]
        rows += await connection.fetch(_SQL["by_transfer"], provider, movement.id)
    for row in rows:
        found.setdefault(
            (row["tenant_id"], row["id"]), (Tenant(row["tenant_id"], row["tenant"]), row["id"], row["key"])
        )
    return list(found.values())


def key_bounds(reference: str) -> tuple[bytes, bytes] | None:
    """Between which keys the one lies that a provider wrote as `reference`."""
    text = reference.replace("-", "").lower()
    try:
        if len(text) == 64:  # noqa: PLR2004 - the whole key in hexadecimal
            return bytes.fromhex(text), bytes.fromhex(text)
        if len(text) == 32:  # noqa: PLR2004 - a UUID
            part = bytes.fromhex(text)[:_INTACT_BYTES]
            return part + bytes(32 - _INTACT_BYTES), part + b"\xff" * (32 - _INTACT_BYTES)
    except ValueError:
        return None
    return None


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
        except LedgerRefused as refused:
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


def _approval(row: asyncpg.Record) -> ApprovalView:
    return ApprovalView(
        id=approval_name(row["id"]),
        settlement=settlement_name(row["subject"].bytes) if row["action"] in _OF_SETTLEMENTS else None,
        order=None if row["action"] in _OF_SETTLEMENTS else msgspec.json.decode(row["evidence"])["order"],
        **{field: row[field] for field in ApprovalView.__struct_fields__ if field not in ("id", "settlement", "order")},
    )
