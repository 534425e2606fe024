"""Postings of checkout on PostgreSQL, inside the transaction of what they describe."""

from collections.abc import Sequence
from hashlib import sha256

from tallystick.audit.author import current
from tallystick.checkout.postings import PaymentMoved, accounts_of, postings
from tallystick.database.pool import Connection
from tallystick.errors import TallystickError
from tallystick.ledger import batch
from tallystick.ledger.account import store as accounts
from tallystick.ledger.outcome import Committed, Duplicate, Rejected
from tallystick.ledger.store import PostgresTransaction


class LedgerRefused(TallystickError):
    """A tenant's books refuse a payment's own posting: they were damaged, or an account is full.

    `rejected`: in the ledger's own words, where it has some. What a tenant wants given back may have left his sales.
    """

    def __init__(self, message: str, rejected: Rejected | None = None) -> None:
        """The message is for a person."""
        super().__init__(message)
        self.rejected = rejected


async def post(connection: Connection, moves: Sequence[PaymentMoved]) -> None:
    """Post them. Last in its transaction, but for the events: everybody needs these accounts.

    The key of a posting is made of what it says: a payment goes one way once in a transaction, and a transaction whose
    COMMIT was lost is run again with the same moves or finds them done.
    """
    if not moves:
        return
    wanted = accounts_of(moves)
    by = current()
    await accounts.ensure(connection, {name: (currency, floor, by) for name, (currency, floor) in wanted.items()})
    claims = postings(moves, _token(moves))
    answers = await batch.run(PostgresTransaction(connection), claims, patient=True)
    for claim, answer in zip(claims, answers, strict=True):
        if not isinstance(answer, Committed):
            what = "it was posted before" if isinstance(answer, Duplicate) else str(answer)
            raise LedgerRefused(
                f"The ledger of tenant {claim.tenant.name} refuses the posting of a payment: {what}. "
                "Nothing was changed; the money is at the provider. Run `tally verify`.",
                answer if isinstance(answer, Rejected) else None,
            )


def _token(moves: Sequence[PaymentMoved]) -> str:
    hashed = sha256()
    for moved in moves:
        hashed.update(
            f"{moved.tenant.number} {moved.move} {moved.provider} {moved.item.order} "
            f"{moved.item.payment_intent_id} {moved.occasion}\n".encode()
        )
    return hashed.hexdigest()[:32]
