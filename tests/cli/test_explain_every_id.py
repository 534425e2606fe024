"""Every id that is stored leads somewhere under `tally explain`: a store with one of each, walked by its columns.

The columns are the database's own. A new one that could hold an id is neither in IDS nor in NO_IDS, and turns this red
until somebody says which it is; one in IDS without a value has not been tried, and turns it red as well.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg

from tallystick.access.store import add_key
from tallystick.audit.author import acting, sign
from tallystick.authority import store as authority
from tallystick.checkout.order.rules import order_name, token_name
from tallystick.checkout.refund.request.flow import RefundRequests
from tallystick.database.explain.explanation import Explanation
from tallystick.database.explain.operator import everything
from tallystick.keys.derived import forms_of
from tallystick.keys.names import settlement_name
from tallystick.ledger.outcome import transaction_name
from tests import servers, simulators
from tests.checkout.saga.test_flow import by_hand
from tests.payments import HURRIED
from tests.providers.worlds import Control
from tests.sagas import Desk, desk
from tests.settlements import shop, superuser

# Lists are asked for by our time, and other tests take theirs far ahead.
payouts_simulator = simulators.own

# Of one column, so many are asked for.
_OF_EACH: Final = 12

Writer = Callable[[Any], Iterable[str]]


def _text(value: str) -> list[str]:
    return [value]


def _number(value: int) -> list[str]:
    return [str(value)]


def _hex(value: bytes) -> list[str]:
    return [value.hex()]


def _order(value: UUID) -> list[str]:
    return [order_name(value.bytes)]


def _transaction(value: UUID) -> list[str]:
    return [transaction_name(value.bytes)]


def _settlement(value: UUID) -> list[str]:
    return [settlement_name(value.bytes)]


def _requests(value: bytes) -> Iterator[str]:
    """The providers' ids of requests, wherever in the evidence they stand."""
    yield from _requests_in(json.loads(value))


def _requests_in(told: object) -> Iterator[str]:
    if isinstance(told, dict):
        if told.get("request_id"):
            yield str(told["request_id"])
        told = list(told.values())
    if isinstance(told, list):
        for part in told:
            yield from _requests_in(part)


# How an id of this column is written where people see it.
IDS: Final[dict[str, Writer]] = {
    "account.id": _text,
    "api_key.prefix": _text,
    "approval.id": lambda value: [f"ap_{value.hex}"],
    "attempt.key": _hex,
    "attempt.provider_id": _text,
    "attempt.evidence": _requests,
    "destination.destination": _text,
    "installation.id": lambda value: [str(value)],
    "intent.key": forms_of,
    "intent.account": _text,
    "intent.mark": _text,
    "journal.digest": _hex,
    "life.shown_by": _text,
    "operation.id": _transaction,
    "operation.key": _text,
    "order_hold.order_id": _order,
    "order_hold.evidence": _requests,
    "orders.id": _order,
    "orders.reservation_token": lambda value: [token_name(value)],
    "orders.sku": _text,
    "orphan.parent": _text,
    "orphan.provider_id": _text,
    "orphan.reference": _text,
    "payment_break.number": _number,
    "payment_break.object_id": _text,
    "payment_idempotency_log.idempotency_key": _hex,
    "payment_idempotency_log.payment_intent_id": _text,
    "payment_idempotency_log.provider_response": _requests,
    "payment_idempotency_log.refund_id": _text,
    "payment_key.key": _text,
    "payment_receipt.charge_key": _hex,
    "payment_receipt.event_number": _number,
    "payment_receipt.payment_intent_id": _text,
    "refund_request.key": _text,
    "refund_request.payment_intent_id": _text,
    "reply.key": _text,
    "settlement.attribution_id": _text,
    "settlement.destination": _text,
    "settlement.id": _settlement,
    "settlement.key": _hex,
    "settlement.squad_id": _text,
    "settlement_event.body": _requests,
    "settlement_state.transfer_id": _text,
    "sku.sku": _text,
    "webhook_events.event_id": _text,
    "webhook_events.number": _number,
    "webhook_events.object_id": _text,
    "webhook_events.parent": _text,
    "webhook_events.provider_id": _text,
    "webhook_events.reference": _text,
    "webhook_guard.dedup_key": _text,
    "webhook_poison.number": _number,
}

# The same value as a column above: a foreign key by its meaning, often by the schema too.
THE_SAME: Final = {
    "account.number entry.account_number velocity_limit.account_number": "inside the database; people see account.id",
    "approval.subject intent.subject orphan.subject": "settlement.id, or a digest of the order that evidence names",
    "closing.closed_id closing.operation_id entry.operation_id journal.operation_id": "operation.id",
    "outbox.operation_id settlement_state.result_id": "operation.id",
    "payment_break.event_number webhook_body.number": "webhook_events.number",
    "webhook_guard.number webhook_verdict.number": "webhook_events.number",
    "payment_break.order_id payment_idempotency_log.order_id payment_key.order_id": "orders.id",
    "payment_receipt.order_id refund_request.order_id": "orders.id",
    "payment_idempotency_log.part refund_request.part": "a digest of refund_request.key, shown nowhere",
    "reply_archive.key": "reply.key, which reads both",
    "settlement.number settlement_state.number settlement_event.number": "inside the database",
    "settlement.source": "account.id",
    "tenant.name": "what --tenant names",
}

# What names nothing: words, states, authors, times, secrets, places in a log, whole bodies.
_WORDS = (
    "account.currency api_key.owner api_key.role approval.action approval.asked_by approval.decided_by "
    "approval.decided_why approval.decision approval.evidence approval.reason attempt.answer attempt.author "
    "attempt.code attempt.number attempt.provider attempt.state authority_ceiling.currency "
    "authority_policy.changed_by breaker.process breaker.provider breaker.reason breaker.state "
    "checkout_policy.changed_by checkout_policy.late checkout_policy.other_amount destination.added_by "
    "destination.provider entry.number intent.provider intent.purpose journal.author journal.subject "
    "life.provider life.why migration.name operation.author order_count.name order_hold.claim_number "
    "order_hold.closed_as order_hold.reason order_hold.verdict orders.currency orders.status orphan.currency "
    "orphan.provider orphan.purpose orphan.state orphan.word outbox.topic payment_break.currency payment_break.kind "
    "payment_break.provider payment_break.purpose payment_break.resolution payment_break.resolved_by "
    "payment_break.word payment_idempotency_log.author payment_idempotency_log.claim_number "
    "payment_idempotency_log.currency payment_idempotency_log.operation_type payment_idempotency_log.provider "
    "payment_idempotency_log.reason payment_idempotency_log.status payment_key.told payment_receipt.currency "
    "payment_receipt.fate payment_receipt.provider payment_receipt.reason reading.how reading.provider "
    "refund_request.currency refund_request.provider refund_request.reason relayed.reader "
    "retention_policy.changed_by settlement.currency settlement.provider settlement_count.name "
    "settlement_event.by settlement_event.what settlement_policy.changed_by settlement_policy.currency "
    "settlement_state.claim_number settlement_state.claimed_by settlement_state.provider settlement_state.reason "
    "settlement_state.status webhook_cursor.provider webhook_events.claim_number webhook_events.claimed_by "
    "webhook_events.currency webhook_events.object_purpose webhook_events.provider webhook_events.purpose "
    "webhook_events.reason webhook_events.state webhook_events.status webhook_events.type webhook_events.word "
    "webhook_guard.provider webhook_offset.topic webhook_poison.reason webhook_poison.resolution "
    "webhook_poison.resolved_by "
    "webhook_poison.topic webhook_verdict.reason webhook_verdict.status"
)
_BYTES = (
    "api_key.digest destination.digest installation_secret.secret intent.instruction journal.body migration.digest "
    "migration.number migration_step.digest migration_step.number operation.body operation.request orphan.key_from "
    "orphan.key_to outbox.body payment_idempotency_log.refusal payment_key.payment_method reply.body reply.request "
    "reply_archive.body reply_archive.request tenant_secret.secret webhook_body.body webhook_cursor.cursor "
    "webhook_poison.digest webhook_poison.key webhook_poison.value"
)
_PLACES = (
    "attempt.token destination.number journal.number journal.xid life.number outbox.number outbox.xid "
    "relayed.number relayed.xid settlement_event.settlement settlement_state.claim_token whereabouts.database "
    "whereabouts.intents"
)
NO_IDS: Final = {*_WORDS.split(), *_BYTES.split(), *_PLACES.split(), *" ".join(THE_SAME).split()}

COLUMNS = """
SELECT c.relname || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
 WHERE c.relnamespace = 'tally'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND a.attnum > 0 AND NOT a.attisdropped
   AND (a.atttypid IN ('text'::regtype, 'uuid'::regtype, 'bytea'::regtype, 'jsonb'::regtype, 'oid'::regtype,
                       'xid8'::regtype) OR a.attname ~ '(number|_id|^settlement)$')
   AND a.attname <> 'tenant_id'
"""

# What takes a broker, a bank or a lost database to come about. Written as its own flow writes it.
RARE = """
SET session_replication_role = replica;
INSERT INTO tally.payment_break (kind, provider, purpose, object_id, word, amount_micros, currency)
VALUES ('disputed', 'stripe', 'charge', 'dp_bank1', 'needs_response', 5000000, 'EUR');
INSERT INTO tally.orphan (provider, reference, provider_id, amount_micros, currency, state, parent)
VALUES ('stripe', 'reference-of-a-lost-life', 're_orphan1', 5000000, 'EUR', 'moved', 'pi_of_a_lost_life');
INSERT INTO tally.life (provider, known_until, why, shown_by)
VALUES ('wise', clock_timestamp(), 'no attempt of this database explains it', 'tr_shown1');
INSERT INTO tally.webhook_poison (topic, partition, first_offset, next_offset, digest, reason)
OVERRIDING SYSTEM VALUE VALUES ('tally.webhooks', 3, 17, 18, sha256('x'), 'a gap');
INSERT INTO tally.webhook_guard (provider, dedup_key, number) VALUES ('stripe', 'evt_let_go', 900001);
INSERT INTO tally.webhook_verdict (number, status, received_at, processed_at)
VALUES (900001, 'PROCESSED_OK', clock_timestamp(), clock_timestamp());
INSERT INTO tally.order_hold (tenant_id, order_id, verdict, evidence)
SELECT tenant_id, id, 'cancelled',
       convert_to('{"exchanges":[{"asked":"cancel","status":200,"request_id":"req_of_the_hold"}]}', 'UTF8')
  FROM tally.orders LIMIT 1 ON CONFLICT DO NOTHING;
-- An answer whose claim was lost, and whose evidence retention has let go: only its id is left.
UPDATE tally.attempt SET provider_id = 'tr_answered_late', evidence = NULL WHERE provider_id IS NOT NULL
   AND (tenant_id, provider, key, number) IN (SELECT tenant_id, provider, key, number FROM tally.attempt
                                               WHERE provider = 'simulator' AND provider_id IS NOT NULL LIMIT 1);
UPDATE tally.webhook_events SET parent = 'ch_parent', reference = 'reference-of-an-event'
 WHERE number = (SELECT min(number) FROM tally.webhook_events);
INSERT INTO tally.webhook_events (number, provider, event_id, type, received_at, due_at, object_id, object_purpose)
VALUES (900002, 'wise', 'evt_named', 'transfers#state-change', clock_timestamp(), clock_timestamp(), 'transfer-17',
        'transfer');
INSERT INTO tally.webhook_guard (provider, dedup_key, number) VALUES ('wise', 'evt_named', 900002);
"""


async def _sell(made: Desk) -> None:
    """A sale given back in part, another given back by two persons, a third by the saga."""
    order, payment = await made.bought("basket-1")
    await made.tell(payment, "evt_basket-1")
    await made.run()
    asking = RefundRequests(
        made.shop.database, made.refunds, {made.shop.world.name: made.shop.provider}, limits=HURRIED
    )
    await asking.refund(
        made.shop.tenant, order.id, amount_micros=5_000_000, idempotency_key="part-1", reason="it broke", restock=False
    )
    ghost, payment = await made.ghost("basket-2")
    given = await by_hand(made, payment)
    await made.tell(payment, "evt_basket-2")
    await made.run()
    await made.decided(ghost, payment, "confirm", refund_id=given)
    _, payment = await made.ghost("basket-3")
    await made.tell(payment, "evt_basket-3")
    await made.run()


async def _one_of_each(dsn: str, control: Control) -> None:
    sign("tests/library")
    async with desk(dsn, control) as made:
        await _sell(made)
    control.plan("stripe.transfer:execute_then_drop@1")
    async with shop(dsn, control) as made_payouts:
        tenant = made_payouts.tenant
        one = await made_payouts.create("attribution-1", squad_id="squad-1")
        await made_payouts.tick()
        await made_payouts.pass_time(timedelta(minutes=20), also_there=False)
        await made_payouts.tick()
        assert (await made_payouts.read(one.id)).status == "transferred"
        other = await made_payouts.create("attribution-2")
        await made_payouts.tick()
        with acting("ada/tsk_ada"):
            await made_payouts.reviews.dispute(
                tenant, other.id, reason="it came back", evidence="", by="ada/tsk_ada", idempotency_key="reply-1"
            )
        await authority.put_destination(
            made_payouts.database, tenant, provider="stripe", destination="acct_known", is_known=True, by="ada"
        )
        await add_key(made_payouts.database, tenant, "viewer", "tsk_of_ada_and_nobody_else", owner="ada")
    connection = await asyncpg.connect(superuser(dsn))
    try:
        await connection.execute(RARE)
    finally:
        await connection.close()


async def _stored(dsn: str) -> dict[str, set[str]]:
    """Every id in the books, by its column, as people see it."""
    connection = await asyncpg.connect(superuser(dsn))
    try:
        columns = {row[0] for row in await connection.fetch(COLUMNS)}
        assert columns - IDS.keys() - NO_IDS == set(), "ids, or not? Say so in IDS or NO_IDS"
        assert (IDS.keys() | NO_IDS) - columns == set(), "gone"
        return {
            column: {
                name
                for row in await connection.fetch(
                    "SELECT DISTINCT {1} FROM tally.{0} WHERE {1} IS NOT NULL".format(*column.split("."))
                )
                for name in write(row[0])
                if name
            }
            for column, write in IDS.items()
        }
    finally:
        await connection.close()


async def test_every_id_in_the_books_leads_somewhere(embedded18: servers.Server, control: Control) -> None:
    dsn = embedded18.fresh_database()
    await _one_of_each(dsn, control)
    stored = await _stored(dsn)
    (here,) = stored["installation.id"]
    stored["intent.mark"] = {f"{here}/{mark}" for mark in stored["intent.mark"]}
    assert [column for column, names in stored.items() if not names] == [], "of these there is none to ask for"
    async with shop(dsn, control) as made:
        unknown = {}
        for column, names in stored.items():
            for name in sorted(names)[:_OF_EACH]:
                known = await everything(made.database, made.tenant, name)
                assert known.unfinished == ()
                if not _speak_of(known.found, name):
                    unknown[column] = name
    assert not unknown, "\n".join(f"{column}: {name}" for column, name in unknown.items())


def _speak_of(found: Iterable[Explanation], name: str) -> bool:
    """What was found says something: at least a summary, and never only the question."""
    return any(one.summary and one.summary != name for one in found)
