"""Reconciliation: what it means when a provider's books and ours do not say the same of a payout.

Pure. The caller passes what the books show, which settlements that means, and the time (the database's) at which it
began to read them.

    missing_here     the provider shows a movement that nothing here explains
    missing_there    transferred here, and the provider shows no such movement, or shows it as another one's
    amount_differs   both have it, with different amounts
    duplicated       the provider moved it more than once
    state_differs    came back or failed though it is transferred here; moved though it is failed or pending here
    undecided        nobody has decided yet: processing or disputed here, or the books could not tell
    timing           too fresh to judge: the next run does. Not a break

Which news contradict a row is decided where webhooks decide it too (`settlement.rules.after_movement`).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from tallystick.keys.names import settlement_name
from tallystick.ledger.claims import Tenant
from tallystick.money.amounts import format_amount
from tallystick.movement.steps import Disputed
from tallystick.providers.words import Facts, Movement
from tallystick.settlement.rules import Status, after_movement

Kind = Literal["missing_here", "missing_there", "amount_differs", "duplicated", "state_differs", "undecided", "timing"]
# By what is done about them: the most urgent first.
BREAKS: Final[tuple[Kind, ...]] = (
    "duplicated",
    "state_differs",
    "amount_differs",
    "missing_there",
    "missing_here",
    "undecided",
)

MISSING: Final = "missing_at_the_provider"
PAID_ANOTHER: Final = "paid_another"
NAMED_BY_SEVERAL: Final = "named_by_several"
OTHER_ACCOUNT: Final = "sent_with_another_account"


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """A settlement as the database has it.

    Of its live key: with whose account it was sent, when first, and until when its bytes may have been written. None:
    nothing of that is known here.
    """

    tenant: Tenant
    number: int
    id: UUID
    key: bytes
    destination: str
    amount_micros: int
    currency: str
    status: Status
    transfer_id: str | None
    reason: str | None
    changed_at: datetime
    account: str | None = None
    first_sent_at: datetime | None = None
    not_after: datetime | None = None

    @property
    def name(self) -> str:
        """As people write it."""
        return settlement_name(self.id.bytes)


class Meant(msgspec.Struct, frozen=True, kw_only=True):
    """What a movement means here. `owner` has its key; `named` are those that were recorded under its id.

    `is_live_key` False: the key is that of an earlier generation of the owner. `is_elsewhere`: the key belongs to
    something that is no settlement.
    """

    owner: Here | None = None
    is_live_key: bool = True
    named: tuple[Here, ...] = ()
    is_elsewhere: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One place where the two halves do not match. `others` are ids of further movements of the same payout."""

    kind: Kind
    reason: str
    here: Here | None = None
    movement: Movement | None = None
    others: tuple[str, ...] = ()


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the provider's books were read, and when the reading began by the database's clock.

    Every payout that was sent in [since, until) is in the list that was read: it reached further to both sides.
    """

    account: str
    since: datetime
    until: datetime
    as_of: datetime
    facts: Facts


def judge(movement: Movement, meant: Meant, question: Question) -> tuple[Finding, ...]:
    """What a movement in the provider's books says of ours. Nothing: they match."""
    rivals = [here for here in meant.named if here.id != (meant.owner and meant.owner.id)]
    if meant.owner is not None:
        found = _owned(movement, meant.owner, question, is_live_key=meant.is_live_key)
        misattributed = [here for here in rivals if here.status == "transferred"]
        wrong = tuple(
            Finding(kind="missing_there", reason=PAID_ANOTHER, here=one, movement=movement) for one in misattributed
        )
        return wrong if found is None else (found, *wrong)
    claimants = [here for here in rivals if here.status == "transferred"] or rivals[:1]
    if len(claimants) > 1:
        # One movement cannot have paid them all, and nothing tells which one it was.
        return tuple(
            Finding(kind="missing_there", reason=NAMED_BY_SEVERAL, here=one, movement=movement) for one in claimants
        )
    if claimants:
        found = _owned(movement, claimants[0], question, is_live_key=True)
        return () if found is None else (found,)
    # What failed moved nothing: there is nothing to explain.
    if meant.is_elsewhere or movement.state == "failed":
        return ()
    reason = "key_unknown" if movement.reference else "no_reference"
    return (Finding(kind="missing_here", reason=reason, movement=movement),)


def before_asking(here: Here, question: Question) -> Finding | None:
    """Why a transferred payout that was not listed need not be asked for by its id. None: ask."""
    if here.changed_at >= question.as_of or _is_on_its_way(here, question):
        return Finding(kind="timing", reason="too_fresh", here=here)
    if here.account is not None and here.account != question.account:
        # These books would not show it, and that would look like absence.
        return Finding(kind="undecided", reason=OTHER_ACCOUNT, here=here)
    return None


def not_found(here: Here, question: Question) -> Finding:
    """A transferred payout that is not in the list, and that the provider does not know by its id."""
    is_covered = (
        here.first_sent_at is not None
        and here.not_after is not None
        and question.since <= here.first_sent_at
        and here.not_after < question.until
    )
    if is_covered:
        return Finding(kind="missing_there", reason=MISSING, here=here)
    # It may be there under another id, made before the list began or after it ended.
    return Finding(kind="undecided", reason="sent_outside_the_span", here=here)


def unreadable(here: Here) -> Finding:
    """A transferred payout of which the provider's answer says nothing."""
    return Finding(kind="undecided", reason="answer_unreadable", here=here)


def doubled(here: Here, ids: Sequence[str]) -> Finding:
    """A payout of which the list shows several movements that did not come back."""
    return Finding(kind="duplicated", reason="moved_twice", here=here, others=tuple(ids))


def _owned(movement: Movement, here: Here, question: Question, *, is_live_key: bool) -> Finding | None:
    verdict = after_movement(
        here.status,
        here.transfer_id,
        movement,
        # A person may have confirmed that the earlier generation is the one that paid.
        is_live_key=is_live_key or movement.id == here.transfer_id,
        amount_micros=here.amount_micros,
        currency=here.currency,
    )
    if verdict is not None:
        if here.changed_at >= question.as_of:
            # The row is newer than the list: what was listed may be what the row was before.
            return Finding(kind="timing", reason="changed_meanwhile", here=here, movement=movement)
        return Finding(kind=_kind(verdict), reason=verdict.reason, here=here, movement=movement)
    if here.status == "processing":
        kind: Kind = "timing" if _is_on_its_way(here, question) else "undecided"
        return Finding(kind=kind, reason="processing", here=here, movement=movement)
    if here.status == "disputed":
        return Finding(kind="undecided", reason=here.reason or "disputed", here=here, movement=movement)
    return None


def _kind(verdict: Disputed) -> Kind:
    if verdict.is_double:
        return "duplicated"
    return "amount_differs" if verdict.reason == "amount_differs" else "state_differs"


def _is_on_its_way(here: Here, question: Question) -> bool:
    return here.not_after is not None and question.as_of < here.not_after + question.facts.longest_in_flight


def told(finding: Finding, provider: str) -> str:
    """For a person: what was found, where the money is, what to do."""
    here, shown = finding.here, _shown(finding, provider)
    if here is None:
        return f"{shown}, and nothing here explains it. {_NOT_OURS[finding.reason]}"
    mine = f"{here.name} of tenant {here.tenant.name} ({format_amount(here.amount_micros, here.currency)}) is "
    mine += here.status + (f" ({here.reason})" if here.reason else "")
    mine += f" as {here.transfer_id}" if here.status == "transferred" else ""
    # A disputed row's reason is its own, whatever it is called here.
    advice = None if here.status == "disputed" else _ADVICE.get(finding.reason)
    return f"{mine}; {shown}. {advice or _BY_KIND[finding.kind]}"


def _shown(finding: Finding, provider: str) -> str:
    movement = finding.movement
    if finding.others:
        return f"{provider} moved it more than once: {', '.join(finding.others)}"
    if movement is None:
        return f"{provider} {_UNSHOWN.get(finding.reason, 'does not show it')}"
    amount = format_amount(movement.amount_micros, movement.currency)
    status = f"{movement.state}, {movement.status}" if movement.status else movement.state
    return f"{provider} shows {movement.purpose} {movement.id} of {amount} ({status})"


_UNSHOWN: Final[Mapping[str, str]] = {
    OTHER_ACCOUNT: "was asked with another account than it was sent with",
    "answer_unreadable": "answers something that cannot be read",
    "sent_outside_the_span": "does not know that id, and the span does not hold all its sends",
}
_NOT_OURS: Final[Mapping[str, str]] = {
    "key_unknown": "It left the account there, and no ledger here has it. If this database was restored, run "
    "`tally recover`; otherwise find who else uses the account.",
    "no_reference": "It bears no key of ours: it was made by hand, by the provider itself or by other software. Book "
    "it where it belongs.",
}
_ADVICE: Final[Mapping[str, str]] = {
    PAID_ANOTHER: "That movement bears the key of another settlement, so this one was confirmed under a wrong id. "
    "Dispute it, then look for its own.",
    NAMED_BY_SEVERAL: "Several settlements were confirmed under that one id, and it cannot have paid them all. Dispute "
    "them, then look for the others'.",
    OTHER_ACCOUNT: "Reconcile with the settings of that account.",
    "sent_outside_the_span": "Run it again with an earlier --since.",
    "answer_unreadable": "Look at it in the provider's dashboard.",
    "processing": "The money is in transit. The next tick asks and records it.",
}
_BY_KIND: Final[Mapping[Kind, str]] = {
    "missing_here": "",
    "missing_there": "The ledger has it as paid out, and the payee may have nothing. Dispute it, ask the provider, "
    "resolve it.",
    "amount_differs": "Dispute it, then find which amount the payee has.",
    "duplicated": "The payee may have too much. Have one of them reversed at the provider, then resolve it.",
    "state_differs": "Dispute it: its money goes back in transit. Then resolve it by what the provider shows.",
    "undecided": "Its money stays in transit. Resolve it.",
    "timing": "The next run judges it.",
}
