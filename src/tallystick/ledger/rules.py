"""The ledger: whether legs may be posted, and what the books say afterwards.

Pure. A book is a plain dict of frozen accounts; posting replaces the accounts it touches, so that the
next operation of the same batch sees what this one did, and a refused one leaves no trace.

Refusals, in order of precedence (the first that applies is the answer):

    legs_missing, leg_invalid, amount_overflow, same_account     the request itself
    account_unknown, currency_mismatch                           against the accounts
    legs_unbalanced                                              does not sum to zero per currency
    velocity_exceeded, insufficient_funds, balance_overflow      against the balances
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tallystick.ledger import velocity
from tallystick.ledger.outcome import Entry, Rejected
from tallystick.money.amounts import MAX_MICROS, format_amount

# One transaction is one lock set and one row set: past this it belongs into several.
MAX_LEGS = 100
MIN_LEGS = 2


class Leg(NamedTuple):
    """One side of a movement: positive is money into the account, negative out of it."""

    account: str
    amount_micros: int
    currency: str


class Account(msgspec.Struct, frozen=True, gc=False):
    """An account as read under its lock. `floor_micros` None: it may go below zero without bound."""

    number: int
    id: str
    currency: str
    floor_micros: int | None
    balance_micros: int
    entries: int
    limits: tuple[velocity.Limit, ...] = ()


Book = dict[str, Account]


def post(book: Book, legs: tuple[Leg, ...]) -> tuple[Entry, ...] | Rejected:
    """Apply the legs to the book: all of them, or none and the reason why."""
    plain = _plain(legs)
    refusal = None if plain else _malformed(legs)
    if refusal is None:
        refusal = _unknown(book, legs)
    if refusal is None and not plain:
        refusal = _unbalanced(legs)
    if refusal is not None:
        return refusal
    after: list[Account] = []
    entries: list[Entry] = []
    for account_id, amount, currency in legs:
        moved = _move(book[account_id], amount)
        if isinstance(moved, Rejected):
            return moved
        after.append(moved)
        entries.append(Entry(account_id, amount, currency, moved.balance_micros, moved.entries))
    for account in after:
        book[account.id] = account
    return tuple(entries)


def _move(account: Account, amount: int) -> Account | Rejected:
    """The account after one leg."""
    balance = account.balance_micros + amount
    floor, limits = account.floor_micros, account.limits
    if amount < 0:
        if limits:
            exceeded = velocity.exceeded(limits, -amount)
            if exceeded is not None:
                return _too_fast(account, exceeded)
            limits = velocity.used(limits, -amount)
        if floor is not None and balance < floor:
            return _insufficient(account, -amount)
    if not -MAX_MICROS <= balance <= MAX_MICROS:
        return Rejected(
            "balance_overflow",
            f"The balance of {account.id} would pass what can be held ({MAX_MICROS} micros).",
            "Move part of the balance to another account first.",
        )
    return Account(account.number, account.id, account.currency, floor, balance, account.entries + 1, limits)


def _plain(legs: tuple[Leg, ...]) -> bool:
    """The common case, recognised quickly: one amount from one account to another, nothing wrong with it."""
    if len(legs) != MIN_LEGS:
        return False
    (debit, out, currency), (credit, in_, other) = legs
    return (
        type(out) is int
        and type(in_) is int
        and out == -in_
        and 0 < in_ <= MAX_MICROS
        and currency == other
        and debit != credit
    )


def _malformed(legs: tuple[Leg, ...]) -> Rejected | None:
    if not MIN_LEGS <= len(legs) <= MAX_LEGS:
        return Rejected(
            "legs_missing",
            f"A transaction has {MIN_LEGS} to {MAX_LEGS} legs; this one has {len(legs)}.",
            "Send at least one debit and one credit, and split what is larger.",
        )
    for leg in legs:
        # bool is an int to isinstance, and True would move one micro.
        if type(leg.amount_micros) is not int or leg.amount_micros == 0:
            return Rejected(
                "leg_invalid",
                f"The leg on {leg.account} has the amount {leg.amount_micros!r}.",
                "Amounts are whole micros, and not zero.",
            )
        if not -MAX_MICROS <= leg.amount_micros <= MAX_MICROS:
            return Rejected(
                "amount_overflow",
                f"The leg on {leg.account} is larger than {MAX_MICROS} micros.",
                "Send a smaller amount.",
            )
    if len({leg.account for leg in legs}) != len(legs):
        return Rejected(
            "same_account",
            "An account is named twice in one transaction.",
            "Name each account once, with the sum of what moves there.",
        )
    return None


def _unknown(book: Mapping[str, Account], legs: tuple[Leg, ...]) -> Rejected | None:
    for leg in legs:
        account = book.get(leg.account)
        if account is None:
            return account_unknown(leg.account)
        if account.currency != leg.currency:
            return Rejected(
                "currency_mismatch",
                f"{leg.account} holds {account.currency} and the operation moves {leg.currency}.",
                "Name an account of that currency, or the account's own currency.",
            )
    return None


def _unbalanced(legs: tuple[Leg, ...]) -> Rejected | None:
    sums: dict[str, int] = {}
    for leg in legs:
        sums[leg.currency] = sums.get(leg.currency, 0) + leg.amount_micros
    for currency, total in sums.items():
        if total:
            return Rejected(
                "legs_unbalanced",
                f"The legs in {currency} sum to {format_amount(total, currency)} instead of zero.",
                "Add the missing leg: money comes from an account and goes to an account.",
            )
    return None


def account_unknown(account_id: str) -> Rejected:
    """The refusal for an account this tenant does not have."""
    return Rejected(
        "account_unknown",
        f"There is no account {account_id}.",
        f"Create it first (PUT /v1/accounts/{account_id}), then send the same request with the same key.",
    )


def _insufficient(account: Account, asked: int) -> Rejected:
    holds = format_amount(account.balance_micros, account.currency)
    floor = account.floor_micros
    limit = f" with a floor of {format_amount(floor, account.currency)}" if floor else ""
    return Rejected(
        "insufficient_funds",
        f"{account.id} holds {holds}{limit} and {format_amount(asked, account.currency)} was asked for.",
        "Top the account up, then send the same request with the same key.",
    )


def _too_fast(account: Account, limit: velocity.Limit) -> Rejected:
    return Rejected(
        "velocity_exceeded",
        f"{account.id} may be debited {velocity.describe(limit, account.currency)}.",
        "Send the same request with the same key when the window has moved on.",
    )
