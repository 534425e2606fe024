"""One batch of claims in one transaction: lock, look up, decide, record.

Locks in the global order: accounts first, then keys. Accounts first, because the twin of a running operation
names the same accounts: it waits there, and finds the key used when it looks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tallystick.commit.group import SET_ASIDE, SetAside
from tallystick.commit.port import LedgerStore, LedgerTransaction
from tallystick.ledger.claims import Answer, Claim, Facts, Fault, Known, Record, decide
from tallystick.ledger.outcome import Transaction, read_transaction, transaction_id, transaction_name

Names = dict[tuple[int, bytes], str]


@dataclass(frozen=True, slots=True)
class _Needs:
    """What must be locked and read for the claims of a batch."""

    accounts: Sequence[tuple[int, str]]
    accounts_of: Mapping[int, Sequence[tuple[int, str]]]
    faults: Mapping[int, Fault]


class LedgerWork:
    """The engine's work for group commit."""

    def __init__(self, store: LedgerStore) -> None:
        """The store decides on which database it runs."""
        self._store = store

    async def commit(self, items: Sequence[Claim], *, patient: bool) -> Sequence[Answer | Literal[SetAside.SET_ASIDE]]:
        """See `commit.group.Work`."""
        async with self._store.transaction() as transaction:
            answers = await run(transaction, items, patient=patient)
        # Only now is COMMIT behind us.
        return answers  # noqa: RET504


async def run(
    transaction: LedgerTransaction, claims: Sequence[Claim], *, patient: bool
) -> list[Answer | Literal[SetAside.SET_ASIDE]]:
    """Decide and record the claims inside an open transaction. They are true once it commits."""
    named = _named(claims)
    transactions = _by_tenant(named, await transaction.read(named.keys()) if named else {})
    needs = _needs(claims, transactions)
    locked = await transaction.lock_accounts(needs.accounts, patient=patient)
    known, held = await transaction.claim(claims, patient=patient)
    closed: dict[int, set[str]] = {}
    if named:
        for tenant, id_ in await transaction.read_closed(named.keys()):
            closed.setdefault(tenant, set()).add(transaction_name(id_))
    answers: list[Answer | Literal[SetAside.SET_ASIDE]] = [SET_ASIDE] * len(claims)
    runnable = []
    for position, claim in enumerate(claims):
        if position in needs.faults:
            answers[position] = needs.faults[position]
        elif (held and (claim.tenant.number, claim.id) in held) or (
            locked.blocked and not locked.blocked.isdisjoint(needs.accounts_of[position])
        ):
            continue
        else:
            runnable.append(position)
    facts = Facts(locked.at, known, locked.books, transactions, closed)
    decided, records = decide([claims[position] for position in runnable], facts)
    for position, answer in zip(runnable, decided, strict=True):
        answers[position] = answer
    await _record(transaction, claims, known, records, locked.at)
    return answers


async def _record(
    transaction: LedgerTransaction,
    claims: Sequence[Claim],
    known: Mapping[tuple[int, bytes], Known],
    records: Sequence[Record],
    at: datetime,
) -> None:
    if len(records) + len(known) < len(claims):
        recorded = {record.claim.id for record in records}
        await transaction.unclaim([c for c in claims if c.id not in recorded and (c.tenant.number, c.id) not in known])
    if records:
        await transaction.record(records, at)


def _named(claims: Sequence[Claim]) -> Names:
    """Earlier transactions that operations of this batch refer to."""
    named: Names = {}
    for claim in claims:
        for name in claim.kind.names(claim.operation):
            id_ = transaction_id(name)
            if id_ is not None:
                named[claim.tenant.number, id_] = name
    return named


def _by_tenant(named: Names, known: Mapping[tuple[int, bytes], Known]) -> dict[int, dict[str, Transaction]]:
    transactions: dict[int, dict[str, Transaction]] = {}
    for (tenant, id_), stored in known.items():
        transactions.setdefault(tenant, {})[named[tenant, id_]] = read_transaction(stored.body)
    return transactions


def _needs(claims: Sequence[Claim], transactions: Mapping[int, Mapping[str, Transaction]]) -> _Needs:
    accounts: set[tuple[int, str]] = set()
    accounts_of: dict[int, Sequence[tuple[int, str]]] = {}
    faults: dict[int, Fault] = {}
    for position, claim in enumerate(claims):
        tenant = claim.tenant.number
        names: Sequence[tuple[int, str]] = claim.accounts
        if tenant in transactions:
            try:
                found = claim.kind.locks(claim.operation, transactions[tenant])
                names = [(tenant, name) for name in found]
            except Exception as cause:  # noqa: BLE001 - a user's kind may raise anything; only its own operation fails
                faults[position] = Fault(claim.kind.name, cause)
                continue
        accounts_of[position] = names
        accounts.update(names)
    return _Needs(sorted(accounts), accounts_of, faults)
