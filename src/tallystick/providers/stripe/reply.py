"""What a reply of Stripe's says about what was asked. Pure.

Done only when the reply is whole, of the right kind and about this very amount, currency and key: anything less
was not proven, and stays Unknown.
"""

from typing import Final

from tallystick.providers.http import Reply
from tallystick.providers.stripe.answers import is_replayed, meaning
from tallystick.providers.stripe.objects import (
    KEY_FIELD,
    Kept,
    PaymentIntent,
    Payout,
    Refund,
    Transfer,
    Unreadable,
    read_object,
)
from tallystick.providers.stripe.request import Request
from tallystick.providers.words import Answer, Done, Exchange, Refused, Unknown
from tallystick.secret import Secret

_SUCCESSES: Final = range(200, 300)
_FIRST_ERROR: Final = 400


def read_reply(reply: Reply, request: Request, exchange: Exchange) -> Answer:
    """The answer to a request that may have moved money."""
    evidence = (exchange,)
    if reply.status >= _FIRST_ERROR:
        return meaning(reply, evidence)
    if reply.status not in _SUCCESSES:
        return Unknown(
            code=f"status_{reply.status}",
            message="Stripe answered with a redirect, which is not followed.",
            evidence=evidence,
        )
    try:
        kept = read_object(request.purpose, reply.body)
        done = done_with(kept, request.account, evidence, replayed=is_replayed(reply))
    except Unreadable as error:
        return Unknown(code="answer_unreadable", message=f"Stripe's answer: {error}.", evidence=evidence)
    if not _is_what_was_asked(kept, request):
        return Unknown(
            code="answer_differs",
            message=f"Stripe answered with {kept.id}, which is not what was asked for. A person must look.",
            evidence=evidence,
        )
    if done.movement.state == "failed":
        return Refused(
            code=_failure(kept),
            message=f"Stripe made {kept.id} and it {done.movement.status}: no money moved.",
            replayed=done.replayed,
            evidence=evidence,
        )
    return done


def done_with(kept: Kept, account: str, evidence: tuple[Exchange, ...], *, replayed: bool = False) -> Done:
    """Stripe has it. Raises Unreadable."""
    opened = kept.client_secret if isinstance(kept, PaymentIntent) else None
    return Done(
        movement=kept.movement(account),
        replayed=replayed,
        client_secret=Secret(opened) if opened else None,
        evidence=evidence,
    )


def _is_what_was_asked(kept: Kept, request: Request) -> bool:
    if (kept.amount, kept.currency, kept.reference) != (request.minor, request.currency, request.key):
        return False
    match kept:
        case PaymentIntent():
            return True
        case Transfer():
            kept_key = (kept.metadata or {}).get(KEY_FIELD)
            return (kept.transfer_group, kept_key, kept.destination) == (request.key, request.key, request.destination)
        case Payout():
            return kept.destination in {None, request.destination}
        case Refund():
            return request.parent in {kept.payment_intent, kept.charge}


def _failure(kept: Kept) -> str:
    match kept:
        case Refund():
            return kept.failure_reason or f"refund_{kept.status}"
        case Payout():
            return kept.failure_code or f"payout_{kept.status}"
        case PaymentIntent() | Transfer():
            return "payment_canceled"
