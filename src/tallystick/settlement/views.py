"""Settlements over HTTP: promise payouts, look at them, doubt and resolve them."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Final, Literal, cast

import msgspec
import structlog

from tallystick.app import Service
from tallystick.errors import TallystickError
from tallystick.http.call import Call, Reply, json_reply
from tallystick.http.idempotency_key import REPLAYED, read_keyed
from tallystick.http.problem import Problem, failed, is_expected, refused
from tallystick.http.query import numbered_cursor, page_size, query_refused
from tallystick.http.reading import read
from tallystick.keys.derived import settlement_key
from tallystick.ledger.claims import Tenant
from tallystick.ledger.decisions import Reviewed
from tallystick.ledger.outcome import Rejected
from tallystick.movement import store as intent
from tallystick.providers.words import Exchange
from tallystick.settings import LIMITS
from tallystick.settlement import store as settlement
from tallystick.settlement.postings import SettlementCreated
from tallystick.settlement.review.store import Resolution
from tallystick.settlement.rules import STATUSES, Status
from tallystick.settlement.store import EventView, Made, SettlementView
from tallystick.settlement.terms import MAX_SQUAD

log = structlog.get_logger("tallystick.http")

SQUAD_PATTERN: Final = rf"[A-Za-z0-9:_.@+=-]{{1,{MAX_SQUAD}}}"
_SQUAD: Final = re.compile(SQUAD_PATTERN)
_BOOLEANS: Final = ("true", "false")

# Ids at providers are shorter than this; what is longer, or holds a space, was not copied from a dashboard.
TransferId = Annotated[str, msgspec.Meta(pattern="^[!-~]*$", max_length=200)]

Submission = tuple[SettlementCreated, str]


class SettlementRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A payout to promise. The fee is the tenant's policy's: there is no field for it.

    `source` is the account that is debited; without one, `settlement:clearing:CUR`. Without `provider` it is that of
    the setting TALLY_PROVIDER. Both are then fixed with the rest.
    """

    attribution_id: str
    squad_id: str
    gross_micros: int
    currency: str
    destination: str
    provider: str | None = None
    source: str | None = None


class SettlementRequestInBatch(SettlementRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A payout to promise, with its own key."""

    idempotency_key: str


class SettlementBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Payouts to promise, each on its own."""

    settlements: list[SettlementRequestInBatch]


class _Pieces(msgspec.Struct, forbid_unknown_fields=True):
    """A batch whose settlements are not looked at yet."""

    settlements: list[msgspec.Raw]


class SettlementOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one of a batch.

    `created` now; `replayed`: created earlier under this key, and told as then; `existing`: created under another key,
    and told as it stands. Otherwise `problem`.
    """

    status: Literal["created", "replayed", "existing", "rejected", "error"]
    settlement: SettlementView | None = None
    problem: Problem | None = None


class SettlementOutcomes(msgspec.Struct, frozen=True):
    """The outcomes, in the order of the settlements."""

    outcomes: list[SettlementOutcome]


class SettlementPage(msgspec.Struct, frozen=True):
    """Settlements, newest first. `next` is the cursor of the following page; null: there is none."""

    settlements: list[SettlementView]
    next: str | None


class SettlementAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One time it was sent. `answer` null: nobody knows yet. `exchanges` is what was asked and said, as evidence."""

    generation: int
    number: int
    idempotency_key: str
    account: str
    sent_at: datetime
    not_after: datetime
    answered_at: datetime | None
    answer: str | None
    code: str | None
    provider_id: str | None
    exchanges: list[Exchange]


class SettlementDetail(SettlementView, frozen=True, kw_only=True):
    """A settlement with all that is known of it.

    `events` are questions asked, disputes, decisions and late news; `attempts` each send. While it is processing,
    `claimed_by` works on it, and from `due_at` on anybody may take it over. `asks_first`: it is looked up before it is
    sent, because a database that was lost may have sent it.
    """

    processing_since: datetime | None
    claimed_at: datetime | None
    claimed_by: str | None
    claim_number: int
    due_at: datetime | None
    asks_first: bool
    attempts: Sequence[SettlementAttempt]
    events: list[EventView]


class DisputeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a final state is doubted, and what shows it."""

    reason: str
    evidence: str


class ResolveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a dispute ends.

    `confirm`: it was paid, under `transfer_id` unless one is known. `write_off`: it was not, and the money is payable
    again. `retry`: ask and send again under the same key; of a failed settlement, ask a second person for a new one.
    """

    resolution: Resolution
    reason: str
    evidence: str
    transfer_id: TransferId | None = None


class Settlements:
    """The endpoints of settlements."""

    def __init__(self, service: Service) -> None:
        """Reads go to the database, as the caller's tenant; whoever decides is known by his key's prefix."""
        self._service = service
        self._database = service.database
        self._decode = msgspec.json.Decoder(SettlementRequest).decode
        self._decode_keyed = msgspec.json.Decoder(SettlementRequestInBatch).decode
        self._decode_batch = msgspec.json.Decoder(SettlementBatch).decode
        self._decode_pieces = msgspec.json.Decoder(_Pieces).decode
        self._decode_dispute = msgspec.json.Decoder(DisputeRequest).decode
        self._decode_resolve = msgspec.json.Decoder(ResolveRequest).decode

    async def create(self, call: Call) -> Reply | Rejected:
        """Promise one payout under the key in the header."""
        keyed = await read_keyed(call, self._decode)
        if isinstance(keyed, Rejected):
            return keyed
        asked, key = keyed
        made = await self._service.settlements.create(call.access.tenant, self._wish(asked), key)
        if isinstance(made, Rejected):
            return made
        reply = json_reply(201 if made.is_new else 200, made.view)
        return msgspec.structs.replace(reply, headers=REPLAYED) if made.is_replayed else reply

    async def create_batch(self, call: Call) -> Reply | Rejected:
        """Promise many payouts, each under its own key and each on its own."""
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        wishes = self._read_batch(body)
        if isinstance(wishes, Rejected):
            return wishes
        call.count_as(len(wishes))
        good = [wish for wish in wishes if not isinstance(wish, Rejected)]
        answers = iter(await self._service.settlements.create_many(call.access.tenant, good))
        outcomes = [_outcome(wish if isinstance(wish, Rejected) else next(answers)) for wish in wishes]
        return json_reply(200, SettlementOutcomes(outcomes))

    async def list(self, call: Call) -> Reply | Rejected:
        """A page of the tenant's settlements."""
        query = call.query("status", "squad_id", "stuck", "cursor", "limit")
        if isinstance(query, Rejected):
            return query
        refusal = _filter_fault(query)
        if refusal is not None:
            return refusal
        most, before = page_size(query), numbered_cursor(query)
        if isinstance(most, Rejected):
            return most
        if isinstance(before, Rejected):
            return before
        page, following = await settlement.list_settlements(
            self._database,
            call.access.tenant,
            status=cast("Status | None", query.get("status")),
            squad_id=query.get("squad_id"),
            stuck=query.get("stuck") == "true",
            before=before,
            most=most,
        )
        return json_reply(200, SettlementPage(page, None if following is None else str(following)))

    async def read(self, call: Call) -> Reply | Rejected:
        """One settlement, with what was sent for it and what happened to it."""
        query = call.query()
        if isinstance(query, Rejected):
            return query
        tenant = call.access.tenant
        row = await settlement.row_of(self._database, tenant, call.path("id"))
        if isinstance(row, Rejected):
            return row
        view = settlement.view(row)
        detail = SettlementDetail(
            **msgspec.structs.asdict(view),
            processing_since=row["processing_since"],
            claimed_at=row["claimed_at"],
            claimed_by=row["claimed_by"],
            claim_number=row["claim_number"],
            due_at=row["due_at"],
            asks_first=row["ask_first"],
            attempts=await self._attempts(tenant, view),
            events=await settlement.events(self._database, tenant, row["id"]),
        )
        return json_reply(200, detail)

    async def dispute(self, call: Call) -> Reply | Rejected:
        """Doubt a transferred or failed settlement."""
        keyed = await read_keyed(call, self._decode_dispute)
        if isinstance(keyed, Rejected):
            return keyed
        asked, key = keyed
        return reviewed(
            await self._service.reviews.dispute(
                call.access.tenant,
                call.path("id"),
                reason=asked.reason,
                evidence=asked.evidence,
                by=call.access.author,
                idempotency_key=key,
            )
        )

    async def resolve(self, call: Call) -> Reply | Rejected:
        """Decide a disputed settlement, or ask for another generation of a failed one."""
        keyed = await read_keyed(call, self._decode_resolve)
        if isinstance(keyed, Rejected):
            return keyed
        asked, key = keyed
        return reviewed(
            await self._service.reviews.resolve(
                call.access.tenant,
                call.path("id"),
                resolution=asked.resolution,
                reason=asked.reason,
                evidence=asked.evidence,
                transfer_id=asked.transfer_id,
                by=call.access.author,
                idempotency_key=key,
            )
        )

    def _wish(self, asked: SettlementRequest) -> SettlementCreated:
        return SettlementCreated(
            attribution_id=asked.attribution_id,
            squad_id=asked.squad_id,
            gross_micros=asked.gross_micros,
            currency=asked.currency,
            destination=asked.destination,
            provider=self._service.settings.provider if asked.provider is None else asked.provider,
            source=asked.source,
        )

    def _read_batch(self, body: bytes) -> Sequence[Submission | Rejected] | Rejected:
        batch = read(self._decode_batch, body)
        if not isinstance(batch, Rejected):
            return _batch_refused(len(batch.settlements)) or self._parted(batch.settlements)
        # One malformed settlement must not stop its neighbours: find out which it is.
        pieces = read(self._decode_pieces, body)
        if isinstance(pieces, Rejected):
            return pieces
        return _batch_refused(len(pieces.settlements)) or self._parted(
            read(self._decode_keyed, bytes(piece)) for piece in pieces.settlements
        )

    def _parted(self, items: Iterable[SettlementRequestInBatch | Rejected]) -> Sequence[Submission | Rejected]:
        return [item if isinstance(item, Rejected) else (self._wish(item), item.idempotency_key) for item in items]

    async def _attempts(self, tenant: Tenant, view: SettlementView) -> Sequence[SettlementAttempt]:
        """Over all generations, oldest first. The keys follow from the content, so none is missed."""
        found = []
        for generation in range(view.generation + 1):
            key = settlement_key(
                tenant=tenant.name,
                currency=view.currency,
                provider=view.provider,
                attribution_id=view.attribution_id,
                squad_id=view.squad_id,
                net_micros=view.net_micros,
                generation=generation,
            )
            for sent in await intent.read(self._database, tenant, key):
                found += [_attempt(generation, key, sent.account, attempt) for attempt in sent.attempts]
        return found


def reviewed(done: Reviewed | Rejected) -> Reply | Rejected:
    """A decision's answer: the same to the byte for every repeat."""
    if isinstance(done, Rejected):
        return done
    return Reply(200, done.body, headers=REPLAYED if done.is_replayed else ())


def _outcome(answer: Made | Rejected | TallystickError) -> SettlementOutcome:
    match answer:
        case Made():
            status: Literal["created", "replayed", "existing"] = (
                "replayed" if answer.is_replayed else "created" if answer.is_new else "existing"
            )
            return SettlementOutcome(status, answer.view)
        case Rejected():
            return SettlementOutcome("rejected", problem=refused(answer))
        case TallystickError():
            if not is_expected(answer):
                log.error("settlement_failed", exc_info=answer)
            return SettlementOutcome("error", problem=failed(answer))


def _attempt(generation: int, key: bytes, account: str, attempt: intent.AttemptView) -> SettlementAttempt:
    return SettlementAttempt(
        generation=generation,
        number=attempt.number,
        idempotency_key=key.hex(),
        account=account,
        sent_at=attempt.sent_at,
        not_after=attempt.not_after,
        answered_at=attempt.answered_at,
        answer=attempt.answer,
        code=attempt.code,
        provider_id=attempt.provider_id,
        exchanges=msgspec.json.decode(attempt.evidence or b"[]", type=list[Exchange]),
    )


def _filter_fault(query: dict[str, str]) -> Rejected | None:
    if query.get("status", STATUSES[0]) not in STATUSES:
        return query_refused("status", f"Use one of {', '.join(STATUSES)}.")
    if query.get("stuck", "true") not in _BOOLEANS:
        return query_refused("stuck", "Send true or false.")
    if "squad_id" in query and not _SQUAD.fullmatch(query["squad_id"]):
        return query_refused("squad_id", f"Use 1 to {MAX_SQUAD} letters, digits and : _ . @ + = -")
    return None


def _batch_refused(count: int) -> Rejected | None:
    if count <= LIMITS.batch_call:
        return None
    return Rejected(
        "batch_too_large",
        f"The batch has {count} settlements.",
        f"Send at most {LIMITS.batch_call} at once. None of these was created.",
    )
