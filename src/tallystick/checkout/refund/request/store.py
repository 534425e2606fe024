"""Parts of payments that callers want given back, on PostgreSQL: key, ledger, stock and intent in one commit."""

from uuid import UUID

from tallystick import queries
from tallystick.checkout.order.rules import order_name
from tallystick.checkout.postings import PaymentItem, PaymentMoved
from tallystick.checkout.postings_store import post
from tallystick.checkout.refund import store as refund
from tallystick.checkout.refund.request.rules import PROVIDER_REASON, Asked, Give, Request, Sold
from tallystick.checkout.refund.store import Begun, Debt, RefundTerms
from tallystick.database.pool import Connection
from tallystick.keys.derived import refund_part
from tallystick.ledger.claims import Tenant

_SQL = queries.load(__package__, "store.sql")


async def find(connection: Connection, tenant: Tenant, key: str) -> Request | None:
    """What a caller's key was used for, and how that stands."""
    row = await connection.fetchrow(_SQL["find"], tenant.number, key)
    return None if row is None else Request(**dict(row))


async def lock(connection: Connection, tenant: Tenant, order_id: UUID) -> Sold | None:
    """The order and the payment that pays it, under their locks. None: there is no such order."""
    order = await connection.fetchrow(_SQL["lock_order"], tenant.number, order_id)
    if order is None:
        return None
    paid = await connection.fetchrow(_SQL["lock_payment"], tenant.number, order_id)
    return Sold(
        name=order_name(order_id.bytes),
        status=order["status"],
        is_backordered=order["is_backordered"],
        is_restocked=paid is not None and paid["is_restocked"],
        provider=None if paid is None else paid["provider"],
        payment_intent_id=None if paid is None else paid["payment_intent_id"],
        amount_micros=order["amount_micros"] if paid is None else paid["amount_micros"],
        currency=order["currency"],
        refunding_micros=0 if paid is None else paid["refunding_micros"],
        since=order["created_at"] if paid is None else paid["received_at"],
    )


def debt_of(tenant: Tenant, asked: Asked, sold: Sold, give: Give) -> Debt:
    """What is owed from the commit of the request on."""
    return Debt(
        tenant=tenant,
        order_id=asked.order_id,
        provider=sold.provider or "",
        payment_intent_id=sold.payment_intent_id or "",
        amount_micros=give.amount_micros,
        currency=sold.currency,
        reason=PROVIDER_REASON,
        # Not now: a database that was restored may have lost an earlier life of this very request.
        since=sold.since,
        part=refund_part(asked.key),
    )


async def begin(connection: Connection, asked: Asked, debt: Debt, terms: RefundTerms) -> list[Begun]:
    """Commit a request with all that it means, inside the caller's transaction. Nothing may be sent before that.

    Empty: the provider's books are asked first, by the financial sweeper.

    Raises LedgerRefused: the money that is to be given back has left the tenant's sales. RestoredDatabase.
    """
    await connection.execute(
        _SQL["add"],
        debt.tenant.number,
        asked.key,
        asked.order_id,
        debt.part,
        debt.provider,
        debt.payment_intent_id,
        asked.amount_micros,
        debt.amount_micros,
        debt.currency,
        asked.reason,
        asked.restock,
    )
    begun = await refund.begin(connection, [debt], terms)
    item = PaymentItem(order_name(asked.order_id.bytes), debt.payment_intent_id, debt.amount_micros)
    await post(
        connection,
        [PaymentMoved(debt.tenant, "giving_back", debt.provider, debt.currency, item, refund.key_of(debt).hex())],
    )
    return begun
