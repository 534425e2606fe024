"""Reviews: what a person decides about a settlement, what needs a second one, and what the provider says later."""

from typing import Literal

from tallystick.database.pool import Connection, Database
from tallystick.ledger.claims import Tenant, key_refusal
from tallystick.ledger.decisions import Decision, Reviewed, once
from tallystick.ledger.outcome import Rejected
from tallystick.providers.words import Movement
from tallystick.settlement.review import store
from tallystick.settlement.review.store import Resolution, ReviewView

_MOST_WORDS = 4_000


class Reviews:
    """Decisions for every tenant. Each is made once under its idempotency key."""

    def __init__(self, database: Database) -> None:
        """Writes as the owner."""
        self._database = database

    async def dispute(
        self, tenant: Tenant, name: str, *, reason: str, evidence: str, by: str, idempotency_key: str
    ) -> Reviewed | Rejected:
        """Doubt a transferred or failed settlement: its money goes back in transit until it is resolved."""
        decision = Decision(subject=name, action="dispute", reason=reason, evidence=evidence)

        async def act(connection: Connection) -> ReviewView | Rejected:
            return await store.dispute(connection, tenant, decision, by=by)

        return _fault(decision, idempotency_key) or await once(self._database, tenant, idempotency_key, decision, act)

    async def resolve(
        self,
        tenant: Tenant,
        name: str,
        *,
        resolution: Resolution,
        reason: str,
        evidence: str,
        transfer_id: str | None,
        by: str,
        idempotency_key: str,
    ) -> Reviewed | Rejected:
        """Decide a disputed settlement. `retry` of a failed one asks a second person for another generation."""
        decision = Decision(
            subject=name, action=resolution, reason=reason, evidence=evidence, transfer_id=transfer_id or None
        )

        async def act(connection: Connection) -> ReviewView | Rejected:
            return await store.resolve(connection, tenant, decision, resolution, by=by)

        refusal = _fault(decision, idempotency_key)
        if refusal is None and not evidence.strip():
            refusal = Rejected(
                "evidence_missing",
                f"{name} would be resolved without a word on what shows it.",
                "Say what you looked at and what it showed: the provider's dashboard, a statement, a reply of theirs.",
            )
        return refusal or await once(self._database, tenant, idempotency_key, decision, act)

    async def decide(
        self,
        tenant: Tenant,
        approval: str,
        *,
        decision: Literal["approve", "reject"],
        reason: str,
        by: str,
        idempotency_key: str,
    ) -> Reviewed | Rejected:
        """Approve what another person asked for, or reject it."""
        asked = Decision(subject=approval, action=decision, reason=reason)

        async def act(connection: Connection) -> ReviewView | Rejected:
            return await store.decide(connection, tenant, asked, is_approved=decision == "approve", by=by)

        return _fault(asked, idempotency_key) or await once(self._database, tenant, idempotency_key, asked, act)

    async def observe(self, provider: str, movement: Movement, *, alarm: str | None = None) -> str | None:
        """News of a movement, from a webhook or a list. The settlement that became disputed by it, if one did.

        `alarm` (`settlement.rules.ALARMS`) raises InFlight while the settlement is being worked on: it is not lost.
        """
        return await store.observe(self._database, provider, movement, alarm=alarm)


def decision_fault(subject: str, reason: str, key: str) -> Rejected | None:
    """What is wrong with a second person's words alone."""
    return _fault(Decision(subject=subject, action="", reason=reason), key)


def _fault(decision: Decision, key: str) -> Rejected | None:
    unusable = key_refusal(key)
    if unusable is not None:
        return unusable
    if not decision.reason.strip():
        return Rejected(
            "reason_missing",
            f"{decision.subject} would be decided without a reason.",
            "Say why, for whoever reads it in a year.",
        )
    for name, text in (
        ("reason", decision.reason),
        ("evidence", decision.evidence),
        # The id of a transfer is a part of it.
        ("evidence", decision.transfer_id or ""),
    ):
        if len(text) > _MOST_WORDS or "\0" in text or not _is_text(text):
            return Rejected(
                f"{name}_invalid", f"The {name} is not text that can be kept.", f"Send up to {_MOST_WORDS} characters."
            )
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
