"""Operations: what callers may ask of the ledger, and which legs each kind means.

Pure. A kind says what must be read for an operation and turns it into legs, or refuses it. The built-in
kinds are at the bottom; a user's own is made the same way (`Kind`) and passed to `tallystick.open(kinds=...)`.

The canonical form of an operation (`Kinds.request`) is what its key is compared by: fields at their default
are left out, so that a field added later does not change the form of what was recorded before.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, cast

import msgspec

from tallystick.ledger.outcome import Rejected, Transaction, transaction_id
from tallystick.ledger.rules import Account, Leg
from tallystick.money.amounts import amount_fault, is_currency

# Moved by a flow's own postings alone: a transfer out of them would be money that a flow has promised.
RESERVED = (
    "settlement:payable:",
    "settlement:in_transit:",
    "settlement:paid_out:",
    "checkout:taken:",
    "checkout:owed:",
)
_ACCOUNT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.@+=-]{0,199}")
# Long enough for a sentence; the memo is stored with every replayable answer.
MAX_MEMO = 500


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of every operation. Subclass it with `frozen=True, tag_field="kind", tag="yours"` for your own."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a handler may decide on: this tenant's accounts, and the transactions the operation names."""

    accounts: Mapping[str, Account]
    transactions: Mapping[str, Transaction]


def _nothing(_operation: Any) -> Iterable[str]:  # noqa: ANN401 - any kind's operation
    return ()


def _no_fault(_operation: Any) -> Rejected | None:  # noqa: ANN401 - any kind's operation
    return None


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of operation.

    `accounts`  the accounts to lock, from the operation and the transactions it names
    `decide`    pure: the legs to post, or a refusal
    `check`     refuses what is wrong with the operation alone, before anything is read
    `names`     written ids of earlier transactions that must be read first
    `closes`    the one of those that this operation finishes; it can be finished only once, ever
    `checks_accounts`  its `check` refuses every account id that cannot be one
    `internal`  it belongs to a flow, and may touch the accounts that are reserved for flows
    """

    request: type[Operation]
    accounts: Callable[[Any, Mapping[str, Transaction]], Iterable[str]]
    decide: Callable[[Any, Reading], Iterable[Leg] | Rejected]
    check: Callable[[Any], Rejected | None] = _no_fault
    names: Callable[[Any], Iterable[str]] = _nothing
    closes: Callable[[Any], str | None] = lambda _operation: None
    checks_accounts: bool = False
    internal: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Its name is the tag of its request type, as seen in JSON under `kind`."""
        object.__setattr__(self, "name", str(self.request.__struct_config__.tag))

    def locks(self, operation: Operation, transactions: Mapping[str, Transaction]) -> Iterable[str]:
        """The accounts to lock. What cannot be an id is left out; posting to it is then refused as unknown."""
        names = self.accounts(operation, transactions)
        return names if self.checks_accounts else [name for name in names if account_fault(name) is None]


class Kinds:
    """The kinds an engine knows: the built-in ones and the user's."""

    def __init__(self, own: Iterable[Kind] = ()) -> None:
        """A kind of the user's may not take the name of another."""
        self._by_type: dict[type, Kind] = {}
        names: set[str] = set()
        for kind in (*BUILT_IN, *own):
            if kind.request.__struct_config__.tag_field != "kind":
                message = f"{kind.request.__name__} must be declared with tag_field='kind' and a tag"
                raise ValueError(message)
            if kind.name in names:
                message = f"two kinds of operation are called {kind.name!r}"
                raise ValueError(message)
            names.add(kind.name)
            self._by_type[kind.request] = kind
        self._encode = msgspec.json.Encoder(order="deterministic").encode

    def of(self, operation: object) -> Kind | None:
        """The kind that handles this operation."""
        return self._by_type.get(type(operation))

    def request(self, operation: Operation) -> bytes:
        """The canonical form an idempotency key is bound to."""
        return self._encode(operation)

    @property
    def requests(self) -> tuple[type[Operation], ...]:
        """Every request type, for decoding and for documentation."""
        return tuple(kind.request for kind in self._by_type.values())


def differing_fields(stored: bytes, asked: bytes) -> tuple[str, ...]:
    """Names of the top-level fields in which two canonical requests differ."""
    before, now = msgspec.json.decode(stored), msgspec.json.decode(asked)
    missing = object()
    return tuple(sorted(k for k in before.keys() | now.keys() if before.get(k, missing) != now.get(k, missing)))


def account_fault(account_id: object) -> Rejected | None:
    """Refuses what cannot be an account's id."""
    if isinstance(account_id, str) and _ACCOUNT_ID.fullmatch(account_id):
        return None
    return Rejected(
        "account_invalid",
        f"{_shown(account_id)} is not an account id.",
        "Use 1 to 200 letters, digits and : _ . @ + = - and begin with a letter or digit.",
    )


def reserved_fault(legs: Iterable[Leg]) -> Rejected | None:
    """Refuses legs on accounts that only a flow may touch."""
    for leg in legs:
        # A user's kind may name anything; what is no text is refused as an unknown account.
        name: object = leg[0]
        if isinstance(name, str) and name.startswith(RESERVED):
            return account_reserved(name)
    return None


def account_reserved(account_id: str) -> Rejected:
    """The refusal for an account that belongs to a flow."""
    return Rejected(
        "account_reserved",
        f"{account_id} belongs to the settlements and moves with them alone.",
        "Create, dispute or resolve a settlement instead; everybody may read the account.",
    )


def _shown(value: object) -> str:
    """The value for a message, cut short. Python refuses to write out an integer of thousands of digits."""
    if type(value) is int and value.bit_length() > 256:  # noqa: PLR2004 - far beyond any amount
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.80}"


_AMOUNT_REMEDY = "Send a whole number of micros (millionths of the major unit) from 1 to 9223372036854775807."


def _amount_refused(value: object) -> Rejected | None:
    code = amount_fault(value)
    if code is None:
        return None
    return Rejected(code, f"amount_micros is {_shown(value)}, which is not an amount.", _AMOUNT_REMEDY)


def currency_fault(currency: object) -> Rejected | None:
    """Refuses what is not an ISO 4217 code."""
    if type(currency) is str and is_currency(currency):
        return None
    return Rejected(
        "currency_unknown",
        f"{_shown(currency)} is not a currency.",
        "Use an ISO 4217 code in capitals: USD, EUR, JPY.",
    )


def memo_fault(memo: object) -> Rejected | None:
    """Refuses what cannot be stored and shown as a memo; None is none."""
    if memo is None or (type(memo) is str and len(memo) <= MAX_MEMO and _storable(memo)):
        return None
    return Rejected(
        "memo_invalid",
        "The memo is not text that can be stored.",
        f"Send at most {MAX_MEMO} characters without NUL or lone surrogates.",
    )


def _storable(text: str) -> bool:
    if text.isascii():
        return "\0" not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def check_movement(source: object, target: object, amount: object, currency: object, memo: object) -> Rejected | None:
    """What every movement from one account to another must satisfy, before anything is read."""
    refusal = (
        _amount_refused(amount)
        or currency_fault(currency)
        or account_fault(source)
        or account_fault(target)
        or memo_fault(memo)
    )
    if refusal is None and source == target:
        return Rejected(
            "same_account", f"{source} is on both sides.", "Name two different accounts: nothing would move."
        )
    return refusal


class Transfer(Operation, frozen=True, tag_field="kind", tag="transfer"):
    """Move an amount from one account to another."""

    debit: str
    credit: str
    amount_micros: int
    currency: str
    memo: str | None = None


class TopUp(Operation, frozen=True, tag_field="kind", tag="topup"):
    """Money came in from outside: from a boundary account (one without a floor) to an account."""

    account: str
    source: str
    amount_micros: int
    currency: str
    memo: str | None = None


class Payout(Operation, frozen=True, tag_field="kind", tag="payout"):
    """Money leaves: from an account to a boundary account (one without a floor)."""

    account: str
    destination: str
    amount_micros: int
    currency: str
    memo: str | None = None


class Fee(Operation, frozen=True, tag_field="kind", tag="fee"):
    """Charge an account a fee for the benefit of a revenue account."""

    account: str
    revenue: str
    amount_micros: int
    currency: str
    memo: str | None = None


class Hold(Operation, frozen=True, tag_field="kind", tag="hold"):
    """Set an amount aside in a holding account. A `release` that names this transaction ends it, once."""

    account: str
    held: str
    amount_micros: int
    currency: str
    memo: str | None = None


class Release(Operation, frozen=True, tag_field="kind", tag="release"):
    """End a hold: `amount_micros` of it goes `to` an account, the rest back to where it came from.

    Without `to` everything goes back. Without `amount_micros` everything goes `to`.
    """

    hold: str
    to: str | None = None
    amount_micros: int | None = None
    memo: str | None = None


class Refund(Operation, frozen=True, tag_field="kind", tag="refund"):
    """Reverse an earlier transaction, leg by leg. A transaction can be refunded only once."""

    transaction: str
    memo: str | None = None


class PostLeg(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One leg of a `post`: positive is money into the account."""

    account: str
    amount_micros: int
    currency: str


class Post(Operation, frozen=True, tag_field="kind", tag="post"):
    """Any number of legs that sum to zero per currency."""

    legs: tuple[PostLeg, ...]
    memo: str | None = None

    def __post_init__(self) -> None:
        """A list could be changed between the check and the posting."""
        if type(self.legs) is not tuple:
            msgspec.structs.force_setattr(self, "legs", tuple(self.legs))


def _movement(request: type[Operation], debit: str, credit: str, *, outside: str | None = None) -> Kind:
    """A kind that moves one amount between the accounts in two of its fields."""
    sides = attrgetter(debit, credit)
    movement = attrgetter(debit, credit, "amount_micros", "currency")
    everything = attrgetter(debit, credit, "amount_micros", "currency", "memo")

    def check(operation: Any) -> Rejected | None:  # noqa: ANN401
        return check_movement(*everything(operation))

    def accounts(operation: Any, _transactions: Mapping[str, Transaction]) -> Iterable[str]:  # noqa: ANN401
        return cast("tuple[str, str]", sides(operation))

    def decide(operation: Any, reading: Reading) -> Iterable[Leg] | Rejected:  # noqa: ANN401
        if outside is not None:
            boundary = reading.accounts.get(getattr(operation, outside))
            if boundary is not None and boundary.floor_micros is not None:
                return Rejected(
                    "not_a_boundary",
                    f"{boundary.id} has a floor, so it is not the edge of the ledger.",
                    f"Name as {outside} an account made with floor_micros null.",
                )
        source, target, amount, currency = movement(operation)
        return Leg(source, -amount, currency), Leg(target, amount, currency)

    return Kind(request, accounts, decide, check, checks_accounts=True)


def transaction_unknown(name: str, wanted: str) -> Rejected:
    """The refusal for a transaction this tenant does not have."""
    return Rejected(
        "transaction_unknown",
        f"There is no {wanted} {_shown(name)}.",
        "Send the id that the first call returned (tx_ and 32 hexadecimal digits).",
    )


def _check_name(name: object, wanted: str) -> Rejected | None:
    if isinstance(name, str) and transaction_id(name) is not None:
        return None
    return transaction_unknown(str(name), wanted)


def _check_post(operation: Post) -> Rejected | None:
    for leg in operation.legs:
        amount = leg.amount_micros
        refusal = (
            _amount_refused(-amount if type(amount) is int and amount < 0 else amount)
            or currency_fault(leg.currency)
            or account_fault(leg.account)
        )
        if refusal is not None:
            return refusal
    return memo_fault(operation.memo)


def _check_release(operation: Release) -> Rejected | None:
    refusal = _check_name(operation.hold, "hold") or memo_fault(operation.memo)
    if refusal is None and operation.to is not None:
        refusal = account_fault(operation.to)
    if refusal is None and operation.amount_micros is not None:
        refusal = _amount_refused(operation.amount_micros)
        if refusal is None and operation.to is None:
            return Rejected("release_invalid", "An amount is given but not where it goes.", "Name the account in `to`.")
    return refusal


def _release_accounts(operation: Release, transactions: Mapping[str, Transaction]) -> Iterable[str]:
    hold = transactions.get(operation.hold)
    accounts = [entry.account for entry in hold.entries] if hold else []
    return accounts if operation.to is None or operation.to in accounts else [*accounts, operation.to]


def _decide_release(operation: Release, reading: Reading) -> Iterable[Leg] | Rejected:
    hold = reading.transactions.get(operation.hold)
    if hold is None or hold.kind != "hold":
        return transaction_unknown(operation.hold, "hold")
    origin, held = hold.entries
    whole = held.amount_micros
    if operation.to == held.account:
        return Rejected("same_account", f"{held.account} already holds it.", "Name another account in `to`.")
    given = whole if operation.amount_micros is None else operation.amount_micros
    if operation.to is None or operation.to == origin.account:
        given = 0
    if given > whole:
        return Rejected(
            "release_too_large",
            f"The hold is {whole} micros and {given} were asked for.",
            "Release at most what is held.",
        )
    legs = [Leg(held.account, -whole, held.currency)]
    if given and operation.to is not None:
        legs.append(Leg(operation.to, given, held.currency))
    if whole - given:
        legs.append(Leg(origin.account, whole - given, held.currency))
    return legs


def _decide_refund(operation: Refund, reading: Reading) -> Iterable[Leg] | Rejected:
    original = reading.transactions.get(operation.transaction)
    if original is None:
        return transaction_unknown(operation.transaction, "transaction")
    if original.kind in ("hold", "release", "refund"):
        return Rejected(
            "not_refundable",
            f"{operation.transaction} is a {original.kind}.",
            "End a hold with a release; move the rest with a transfer.",
        )
    if not original.entries:
        return Rejected(
            "not_refundable",
            f"{operation.transaction} is a {original.kind}: it moved no money.",
            "Cancel the order instead.",
        )
    return [Leg(entry.account, -entry.amount_micros, entry.currency) for entry in original.entries]


BUILT_IN: tuple[Kind, ...] = (
    _movement(Transfer, "debit", "credit"),
    _movement(TopUp, "source", "account", outside="source"),
    _movement(Payout, "account", "destination", outside="destination"),
    _movement(Fee, "account", "revenue"),
    _movement(Hold, "account", "held"),
    Kind(
        Release,
        accounts=_release_accounts,
        decide=_decide_release,
        check=_check_release,
        names=lambda operation: (operation.hold,),
        closes=lambda operation: operation.hold,
    ),
    Kind(
        Refund,
        accounts=lambda operation, transactions: [
            entry.account for entry in getattr(transactions.get(operation.transaction), "entries", ())
        ],
        decide=_decide_refund,
        check=lambda operation: _check_name(operation.transaction, "transaction") or memo_fault(operation.memo),
        names=lambda operation: (operation.transaction,),
        closes=lambda operation: operation.transaction,
    ),
    Kind(
        Post,
        accounts=lambda operation, _transactions: [leg.account for leg in operation.legs],
        decide=lambda operation, _reading: [
            Leg(leg.account, leg.amount_micros, leg.currency) for leg in operation.legs
        ],
        check=_check_post,
        checks_accounts=True,
    ),
)
