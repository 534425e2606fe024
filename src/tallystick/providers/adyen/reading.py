"""What Adyen's replies mean: an Answer for each. Pure.

A reply in the 200s is believed only when it can be read, has an id and repeats what was asked.
"""

from typing import Final

import msgspec

from tallystick.movement.mark import is_older
from tallystick.providers import fetched
from tallystick.providers.adyen.answers import TABLE, trouble
from tallystick.providers.adyen.objects import (
    PAYMENT_STATES,
    Payment,
    RefundReceived,
    Transfer,
    is_id,
    micros,
    read,
    transfer_movement,
)
from tallystick.providers.adyen.wording import Wording
from tallystick.providers.classification import classify
from tallystick.providers.http import Reply
from tallystick.providers.line import Said
from tallystick.providers.words import Answer, Busy, Done, Exchange, Fetched, Movement, Refused, Unknown
from tallystick.secret import Secret

_ERROR: Final = 400
# docs/providers.md 3: payments 200, refunds 201, transfers 200 or 202.
_SUCCESS: Final = frozenset({200, 201, 202})
# In a body that cannot be read as a payment it is known by its name alone.
_ACTION: Final = b'"action"'


def body_of(said: Said) -> bytes | Refused | Busy | Unknown:
    """The body of a success; otherwise what the trouble means."""
    evidence = (said.exchange,)
    if not isinstance(said.result, Reply):
        message = f"Adyen gave no whole answer ({said.result.reason}). It may have happened."
        return Unknown(code="unanswered", message=message, evidence=evidence)
    if said.result.status in _SUCCESS:
        return said.result.body
    if said.result.status < _ERROR:
        return _unreadable(evidence)
    return classify(TABLE, trouble(said.result), evidence)


def payment_answer(said: Said, wording: Wording) -> Answer:
    """What POST /payments answered."""
    said = _without_action(said)
    body = body_of(said)
    if not isinstance(body, bytes):
        return body
    evidence = (said.exchange,)
    payment = read(body, Payment)
    if payment is None or not is_id(payment.psp_reference or "") or not payment.result_code.isprintable():
        return _unreadable(evidence)
    state = PAYMENT_STATES.get(payment.result_code, "moving")
    if payment.merchant_reference not in {None, wording.reference}:
        return _differs(evidence)
    if state == "failed":
        reason = payment.refusal_reason or "no reason given"
        number = f" ({payment.refusal_reason_code})" if payment.refusal_reason_code else ""
        message = f"Adyen answered {payment.result_code}: {reason}{number}. No money moved."
        return Refused(code=payment.result_code.lower(), message=message, evidence=evidence)
    # While the customer still has something to do Adyen may leave the amount out: nothing moves before the webhook,
    # and the webhook names it.
    if payment.amount != wording.amount and not (state == "waiting" and payment.amount is None):
        return _differs(evidence)
    action = bytes(payment.action).decode().removeprefix("null")
    return Done(
        movement=Movement(
            provider="adyen",
            purpose="charge",
            id=payment.psp_reference or "",
            amount_micros=micros(wording.amount) or 0,
            currency=wording.amount.currency,
            state=state,
            status=payment.result_code,
            reference=wording.reference,
        ),
        client_secret=Secret(action) if action else None,
        evidence=evidence,
    )


def refund_answer(said: Said, wording: Wording, payment_id: str) -> Answer:
    """What POST /payments/{psp}/refunds answered: at best that it was received."""
    body = body_of(said)
    if not isinstance(body, bytes):
        return body
    evidence = (said.exchange,)
    refund = read(body, RefundReceived)
    if refund is None or not is_id(refund.psp_reference) or not refund.status.isprintable():
        return _unreadable(evidence)
    if (
        refund.amount != wording.amount
        or refund.payment_psp_reference != payment_id
        or refund.reference not in {None, wording.reference}
    ):
        return _differs(evidence)
    return Done(
        movement=Movement(
            provider="adyen",
            purpose="refund",
            id=refund.psp_reference,
            amount_micros=micros(wording.amount) or 0,
            currency=wording.amount.currency,
            state="moving",
            status=refund.status,
            reference=wording.reference,
            parent=payment_id,
        ),
        evidence=evidence,
    )


def transfer_answer(said: Said, wording: Wording) -> Answer:
    """What POST /transfers answered."""
    body = body_of(said)
    if not isinstance(body, bytes):
        return body
    evidence = (said.exchange,)
    transfer = read(body, Transfer)
    movement = None if transfer is None else transfer_movement(transfer)
    if transfer is None or movement is None:
        return _unreadable(evidence)
    if transfer.amount != wording.amount or transfer.reference != wording.reference:
        return _differs(evidence)
    if movement.state == "failed":
        reason = transfer.reason or transfer.status
        message = f"Adyen made the transfer {transfer.id} and it is {transfer.status}: {reason}. No money moved."
        return Refused(code=reason, message=message, evidence=evidence)
    # Adyen does not say that it answers from memory: its own clock does.
    answered = said.result.headers.get("date", "") if isinstance(said.result, Reply) else ""
    return Done(movement=movement, replayed=is_older(movement.created_at, answered), evidence=evidence)


def fetched_transfer(said: Said) -> Fetched:
    """What GET /transfers/{id} answered."""
    body = fetched.body_of("Adyen", said)
    if not isinstance(body, bytes):
        return body
    transfer = read(body, Transfer)
    movement = None if transfer is None else transfer_movement(transfer)
    if movement is None:
        return fetched.unreadable("Adyen", "it is no transfer", (said.exchange,))
    return Done(movement=movement, evidence=(said.exchange,))


def _without_action(said: Said) -> Said:
    """An action may hold a session of the customer's: it is for him, not for a row, whatever else the answer says."""
    if not isinstance(said.result, Reply):
        return said
    payment = read(said.result.body, Payment)
    if _ACTION not in said.result.body and (payment is None or not bytes(payment.action)):
        return said
    shown = "(hidden)" if payment is None else payment.result_code
    return Said(said.result, msgspec.structs.replace(said.exchange, said=shown))


def _unreadable(evidence: tuple[Exchange, ...]) -> Unknown:
    message = "Adyen's answer cannot be read as what was asked for. It may have happened."
    return Unknown(code="answer_unreadable", message=message, evidence=evidence)


def _differs(evidence: tuple[Exchange, ...]) -> Unknown:
    message = "Adyen's answer names another amount, currency or reference than was asked for."
    return Unknown(code="answer_differs", message=message, evidence=evidence)
