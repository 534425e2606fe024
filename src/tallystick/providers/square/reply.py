"""What a reply of Square's says about what was asked. Pure.

Done only when the reply is whole, of the right kind and about this very amount, currency and key: anything less
was not proven, and stays Unknown.
"""

from typing import Final

from tallystick.movement.mark import is_older
from tallystick.providers.http import Reply
from tallystick.providers.square.answers import meaning
from tallystick.providers.square.objects import Kept, Refund, Unreadable
from tallystick.providers.square.objects import read_reply as read_object_of
from tallystick.providers.square.request import Request
from tallystick.providers.words import Answer, Done, Exchange, Refused, Unknown

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
            message="Square answered with a redirect, which is not followed.",
            evidence=evidence,
        )
    try:
        kept = read_object_of(request.purpose, reply.body)
        movement = kept.movement()
    except Unreadable as error:
        return Unknown(code="answer_unreadable", message=f"Square's answer: {error}.", evidence=evidence)
    if not _is_what_was_asked(kept, request):
        return Unknown(
            code="answer_differs",
            message=f"Square answered with {kept.id}, which is not what was asked for. A person must look.",
            evidence=evidence,
        )
    if movement.state == "failed":
        return Refused(
            code=f"{request.purpose}_{kept.status.lower()}",
            message=f"Square made {kept.id} and it is {kept.status}: no money moved.",
            evidence=evidence,
        )
    # Square does not say that it answers from memory: its own clock does.
    replayed = is_older(movement.created_at, reply.headers.get("date", ""))
    return Done(movement=movement, replayed=replayed, evidence=evidence)


def _is_what_was_asked(kept: Kept, request: Request) -> bool:
    if kept.amount_money != request.money or kept.reference != request.reference:
        return False
    return not isinstance(kept, Refund) or kept.payment_id == request.parent
