"""Operations over HTTP: one, many, and read back."""

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, Literal, cast

import msgspec
import structlog

from tallystick.app import Service
from tallystick.errors import TallystickError
from tallystick.http.call import Call, Reply, json_reply
from tallystick.http.idempotency_key import REPLAYED, read_key
from tallystick.http.metrics import Metrics
from tallystick.http.problem import Problem, failed, is_expected, refused
from tallystick.http.reading import read
from tallystick.ledger import transaction
from tallystick.ledger.kinds import Operation
from tallystick.ledger.outcome import Committed, Duplicate, Outcome, Rejected
from tallystick.settings import LIMITS

log = structlog.get_logger("tallystick.http")

Submission = tuple[Operation, str]


class BatchOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one operation: `transaction` if it is committed, now or earlier; otherwise `problem`."""

    status: Literal["committed", "duplicate", "rejected", "error"]
    transaction: msgspec.Raw | None = None
    problem: Problem | None = None


class BatchOutcomes(msgspec.Struct, frozen=True):
    """The outcomes, in the order of the operations."""

    outcomes: list[BatchOutcome]


class _Pieces(msgspec.Struct, forbid_unknown_fields=True):
    """A batch whose operations are not looked at yet."""

    operations: list[msgspec.Raw]


class Operations:
    """The endpoints of operations."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        """Knows the kinds of this engine, the user's included."""
        self._service = service
        self._metrics = metrics
        requests = service.engine.kinds.requests
        self.request: Any = reduce(or_, requests)
        keyed: dict[Any, type[Operation]] = {_keyed(request): request for request in requests}
        keyed_request: Any = reduce(or_, keyed)
        self.batch_request: Any = msgspec.defstruct(
            "Batch", [("operations", list[keyed_request])], forbid_unknown_fields=True
        )
        self._decode = msgspec.json.Decoder(self.request).decode
        self._decode_keyed = msgspec.json.Decoder(keyed_request).decode
        self._decode_batch: Callable[[bytes], Any] = msgspec.json.Decoder(self.batch_request).decode
        self._decode_pieces = msgspec.json.Decoder(_Pieces).decode
        self._parted = {type_: _parting(request) for type_, request in keyed.items()}

    async def submit(self, call: Call) -> Reply | Rejected:
        """Run one operation under the key in the header."""
        outcome = await self._submit(call)
        if isinstance(outcome, Committed):
            self._metrics.operation("committed")
            return Reply(201, outcome.body)
        if isinstance(outcome, Duplicate):
            self._metrics.operation("duplicate")
            return Reply(201, outcome.body, headers=REPLAYED)
        self._metrics.operation(outcome.code)
        return outcome

    async def _submit(self, call: Call) -> Outcome:
        key = read_key(call.headers(b"idempotency-key"))
        if isinstance(key, Rejected):
            return key
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        operation = read(self._decode, body)
        if isinstance(operation, Rejected):
            return operation
        return await self._service.engine.submit(call.access.tenant, operation, key)

    async def submit_batch(self, call: Call) -> Reply | Rejected:
        """Run many operations, each under its own key and each on its own."""
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        submissions = self._read_batch(body)
        if isinstance(submissions, Rejected):
            return submissions
        call.count_as(len(submissions))
        good = [submission for submission in submissions if not isinstance(submission, Rejected)]
        answers = iter(await self._service.engine.submit_many(call.access.tenant, good))
        outcomes = [
            self._outcome(submission if isinstance(submission, Rejected) else next(answers))
            for submission in submissions
        ]
        return json_reply(200, BatchOutcomes(outcomes))

    def _read_batch(self, body: bytes) -> list[Submission | Rejected] | Rejected:
        batch = read(self._decode_batch, body)
        if not isinstance(batch, Rejected):
            keyed = batch.operations
            return _batch_refused(len(keyed)) or [self._parted[type(item)](item) for item in keyed]
        # One malformed operation must not stop its neighbours: find out which it is.
        pieces = read(self._decode_pieces, body)
        if isinstance(pieces, Rejected):
            return pieces
        return _batch_refused(len(pieces.operations)) or [self._read_piece(bytes(p)) for p in pieces.operations]

    def _read_piece(self, piece: bytes) -> Submission | Rejected:
        item = read(self._decode_keyed, piece)
        return item if isinstance(item, Rejected) else self._parted[type(item)](item)

    def _outcome(self, answer: Outcome | TallystickError) -> BatchOutcome:
        match answer:
            case Committed(body):
                self._metrics.operation("committed")
                return BatchOutcome("committed", msgspec.Raw(body))
            case Duplicate(body):
                self._metrics.operation("duplicate")
                return BatchOutcome("duplicate", msgspec.Raw(body))
            case Rejected():
                self._metrics.operation(answer.code)
                return BatchOutcome("rejected", problem=refused(answer))
            case TallystickError():
                problem = failed(answer)
                if not is_expected(answer):
                    log.error("operation_failed", exc_info=answer)
                self._metrics.operation(problem.code)
                return BatchOutcome("error", problem=problem)

    async def read(self, call: Call) -> Reply | Rejected:
        """A committed transaction by its id."""
        query = call.query()
        if isinstance(query, Rejected):
            return query
        body = await transaction.read(self._service.database, call.access.tenant, call.path("id"))
        return body if isinstance(body, Rejected) else Reply(200, body)


def _batch_refused(count: int) -> Rejected | None:
    if count <= LIMITS.batch_call:
        return None
    return Rejected(
        "batch_too_large",
        f"The batch has {count} operations.",
        f"Send at most {LIMITS.batch_call} at once. None of these was run.",
    )


def _keyed(request: type[Operation]) -> type[Operation]:
    """The request type with the idempotency key among its fields, as it stands in a batch."""
    config = request.__struct_config__
    made = msgspec.defstruct(
        f"{request.__name__}InBatch",
        [("idempotency_key", str)],
        bases=(request,),
        tag_field=config.tag_field,
        tag=config.tag,
        kw_only=True,
    )
    made.__doc__ = request.__doc__
    return cast("type[Operation]", made)


def _parting(request: type[Operation]) -> Callable[[Operation], Submission]:
    """How to part an operation of a batch into the operation itself and its key."""
    fields = request.__struct_fields__

    def part(item: Any) -> Submission:  # noqa: ANN401 - the request with a key, made at run time
        return request(**{field: getattr(item, field) for field in fields}), item.idempotency_key

    return part
