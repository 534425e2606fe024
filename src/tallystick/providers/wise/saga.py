"""The saga: four calls that are one transfer, and what is safe about each (docs/providers.md 5).

    quote ──> recipient ──> transfer ──> fund ──> Done
      │           │            │          ├── 409: funded before? looked at, then Done
      │           │            │          ├── REJECTED: looked at, cancelled if it is ours alone, then Refused
      │           │            │          └── anything else: Unknown
      └───────────┴────────────┴── refused: no transfer of an earlier send either? then Refused

    quote      moves nothing and binds nobody: repeated with every send, and left to expire.
    recipient  moves nothing. Sent again it makes a harmless second one; where the destination is a number, none.
    transfer   carries customerTransactionId, our key. The reply may be the transfer of an earlier send, with another
               quote and recipient: it is taken when its amount, currency and id are ours. Whether Wise repeats
               itself so is not certain (docs/providers.md 9): where it only says that it knows the id, the earlier
               transfer is looked for in its list. Making moves nothing either, but a person may fund what is there:
               so without a readable answer the outcome is unknown.
    fund       the one that moves money. It has no key, and needs none: a transfer is funded once, a second try is
               answered 409. A transfer that was funded before is not funded again. One whose funding was rejected
               could still be funded by a person, so it is cancelled, and refused only when the cancelling is
               confirmed; but it is looked at first, because a rejection may also mean that it was funded before, and
               cancelling that would take a payment back. One that waits for a person's approval stays: the same key
               goes on from there.

Once a transfer is there somebody may fund it, with us or without: a person in Wise's app, or another send. So from
then on nothing is Busy, whatever kept us from funding; and before anything is Refused, what an earlier send may have
made is looked for.

Cancelling is for the one who is alone with the transfer. Between the look and the cancelling another send's funding
may arrive: that one is told Done, and we would cancel a payment. Another send can be in its funding call only if it
came before us, for a later one begins when our permit is over, and without one we do not cancel. So we cancel only
on the first send, and only what was made of this send's own quote, which nobody else has. Otherwise it is Unknown: the
same key goes on from there, or a person decides.

Each call needs the permit to send; one that is left out for want of it is Busy as long as there is no transfer. What
is Busy is said of this send alone: an earlier one under the same key may have gone further.
"""

from datetime import timedelta
from typing import Final, TypeGuard, TypeVar

import msgspec

from tallystick.movement.mark import is_older
from tallystick.providers.classification import classify
from tallystick.providers.http import Reply
from tallystick.providers.line import Line, Said
from tallystick.providers.steady import steady
from tallystick.providers.wise.answers import OWN_ID, SCA_REQUIRED, TABLE, trouble
from tallystick.providers.wise.listing import Listing
from tallystick.providers.wise.objects import (
    CANCELLED,
    FUNDED,
    UNFUNDED,
    Funding,
    Quote,
    Recipient,
    Transfer,
    micros,
    movement,
    read,
)
from tallystick.providers.wise.wording import Wording
from tallystick.providers.words import Answer, Busy, Done, Exchange, Refused, Sending, Unknown

_JSON: Final = (("content-type", "application/json"),)
_SUCCESS: Final = frozenset({200, 201})
_CONFLICT: Final = 409
_ERROR: Final = 400
_SERVER_ERROR: Final = 500
_PAUSE_SECONDS: Final = 2.0
_PERSON_PAUSE_SECONDS: Final = 60.0
_FUND: Final = b'{"type":"BALANCE"}'
# Other clients of Wise's meet it instead of the 409.
_FUNDED_BEFORE: Final = "payment.exists"
# From the first send's commit to its not-after is one permit, some of which is gone when we begin; to the not-after of
# a send after one that was not answered it is two leaves at least.
_PERMITS_OF_A_FIRST_SEND: Final = 1.5

Read = TypeVar("Read")


class Saga:
    """One transfer, on its way through the four calls."""

    def __init__(self, line: Line, listing: Listing, profile_id: str, wording: Wording, sending: Sending) -> None:
        """Used once."""
        self._line = line
        self._listing = listing
        self._profile_id = profile_id
        self._wording = wording
        self._sending = sending
        self._evidence: tuple[Exchange, ...] = ()
        # When it answered last, by its own clock.
        self._answered = ""
        self._quote_id = ""
        permit = timedelta(seconds=sending.sendable_until - steady())
        self._is_first = sending.not_after - sending.first_sent_at <= permit * _PERMITS_OF_A_FIRST_SEND

    async def run(self) -> Answer:
        """All four, as far as they go."""
        made = await self._transfer()
        if _refuses(made):
            made = await self._earlier(made)
        if not isinstance(made, Transfer):
            return made
        return await self._after_making(made)

    async def _transfer(self) -> Transfer | Answer:
        """The first three."""
        quote = await self._harmless("quote", f"/v3/profiles/{self._profile_id}/quotes", self._wording.quote, Quote)
        if not isinstance(quote, Quote):
            return quote
        fault = self._quote_fault(quote)
        if fault is not None:
            return fault
        self._quote_id = quote.id
        recipient_id = self._wording.recipient_id
        if recipient_id is None:
            recipient = await self._harmless("recipient", "/v1/accounts", self._wording.recipient, Recipient)
            if not isinstance(recipient, Recipient):
                return recipient
            if recipient.id <= 0 or recipient.currency not in {None, self._wording.currency}:
                return self._nothing_moved("recipient_differs", "Wise made another recipient than was asked for.")
            recipient_id = recipient.id
        return await self._make(quote.id, recipient_id)

    async def _harmless(self, step: str, path: str, body: bytes, wanted: type[Read]) -> Read | Refused | Busy | Unknown:
        """A call that cannot move money: an error is final by the table, and otherwise known not to have moved any."""
        said = await self._send("POST", path, body)
        if isinstance(said, Busy):
            return said
        if not isinstance(said.result, Reply):
            return self._nothing_moved(f"{step}_unanswered", f"Wise did not answer the {step}.")
        if said.result.status in _SUCCESS:
            found = read(said.result.body, wanted)
            if found is None:
                return self._nothing_moved(f"{step}_unreadable", f"Wise's answer to the {step} cannot be read.")
            return found
        if said.result.status < _ERROR:
            return self._nothing_moved(f"{step}_unreadable", f"Wise sent us elsewhere with the {step}.")
        answer = classify(TABLE, trouble(said.result, "making"), self._evidence)
        if not isinstance(answer, Unknown) or answer.says_refused:
            return answer
        # An error we do not know will not go away by waiting, unless it is the server's own.
        person = said.result.status < _SERVER_ERROR
        return self._nothing_moved(f"{step}_failed", f"{step}: {answer.message}", needs_person=person)

    def _quote_fault(self, quote: Quote) -> Busy | None:
        if (
            not quote.id
            or quote.target_currency != self._wording.currency
            or quote.source_currency != self._wording.source_currency
            or micros(quote.target_amount, quote.target_currency) != self._wording.amount_micros
        ):
            return self._nothing_moved("quote_differs", "Wise quoted another amount or currency than was asked for.")
        for notice in quote.notices or ():
            if notice.type == "BLOCKED":
                return self._nothing_moved("quote_blocked", f"Wise blocks it: {notice.text}", needs_person=True)
        return None

    async def _make(self, quote_id: str, recipient_id: int) -> Transfer | Answer:
        said = await self._send("POST", "/v1/transfers", self._wording.transfer(quote_id, recipient_id))
        if isinstance(said, Busy):
            return said
        if not isinstance(said.result, Reply):
            return self._unknown("unanswered", f"Wise gave no whole answer ({said.result.reason}).")
        if said.result.status >= _ERROR:
            fault = trouble(said.result, "making")
            answer = classify(TABLE, fault, self._evidence)
            if isinstance(answer, Unknown) and (fault.type == OWN_ID or said.result.status == _CONFLICT):
                return await self._earlier(answer)
            return answer
        made = read(said.result.body, Transfer) if said.result.status in _SUCCESS else None
        if made is None or made.id <= 0:
            return self._unknown("answer_unreadable", "Wise's answer cannot be read as a transfer.")
        if not self._is_ours(made):
            return self._unknown("answer_differs", "Wise's transfer is not the one that was asked for.")
        return made

    async def _earlier(self, answer: Unknown | Refused) -> Transfer | Answer:
        """What an earlier send made is looked for in Wise's list; `answer` where there is none.

        Either Wise knows our id and does not repeat what it made of it, or this send is refused: that would be
        final, and an earlier one may have left a transfer that was funded since, or still can be.
        """
        # Not from the first send that is known: one of a life of the database that was lost may have been earlier.
        since = min(self._sending.first_sent_at, self._sending.since or self._sending.first_sent_at)
        finding = await self._listing.find(self._wording.reference, first_sent_at=since, until=self._sending.not_after)
        self._evidence += finding.evidence
        if len(finding.transfers) == 1 and self._is_ours(finding.transfers[0]):
            return finding.transfers[0]
        if _refuses(answer) and finding.broken is not None:
            message = f"Wise refused it ({answer.code}), and did not show whether an earlier send made a transfer."
            return self._nothing_moved("earlier_unclear", message)
        if _refuses(answer) and finding.transfers:
            message = f"Wise refused it ({answer.code}), and shows what earlier sends made: not the one asked for."
            return self._unknown("earlier_differs", message)
        return msgspec.structs.replace(answer, evidence=self._evidence)

    def _is_ours(self, made: Transfer) -> bool:
        return (
            made.reference == self._wording.reference
            and made.target_currency == self._wording.currency
            and micros(made.target_value, made.target_currency) == self._wording.amount_micros
            and self._wording.recipient_id in {None, made.target_account}
        )

    async def _after_making(self, made: Transfer) -> Answer:
        if made.status in FUNDED or made.status == CANCELLED:
            return self._settled(made)
        if made.status != UNFUNDED:
            return self._unknown(
                "status_unknown", f"Transfer {made.id} is {made.status}: whether to fund it is unclear."
            )
        return await self._fund(made)

    async def _fund(self, made: Transfer) -> Answer:
        said = await self._send("POST", f"/v3/profiles/{self._profile_id}/transfers/{made.id}/payments", _FUND)
        if isinstance(said, Busy):
            return self._unfunded(made, said)
        if not isinstance(said.result, Reply):
            return self._unknown("unanswered", f"Wise gave no whole answer to the funding ({said.result.reason}).")
        if said.result.status == _CONFLICT:
            return await self._after_conflict(made)
        if said.result.status >= _ERROR:
            return self._unfunded(made, classify(TABLE, trouble(said.result, "funding"), self._evidence))
        funding = read(said.result.body, Funding) if said.result.status in _SUCCESS else None
        if funding is None or funding.type != "BALANCE":
            return self._unknown("answer_unreadable", "Wise's answer to the funding cannot be read.")
        match funding.status:
            case "COMPLETED" if funding.error_code is None:
                return self._done(made, funded_as=funding.status)
            case "REJECTED":
                return await self._after_rejection(made, funding.error_code or "funding_rejected")
            case _:
                return self._unknown("answer_unreadable", f"The funding of transfer {made.id} is {funding.status}.")

    def _unfunded(self, made: Transfer, answer: Refused | Busy | Unknown) -> Unknown:
        """This send did not fund it. It is there, and whoever reads "nothing happened" may let it be funded."""
        if isinstance(answer, Unknown):
            return answer
        message = f"{answer.message} Transfer {made.id} is made, and this send did not fund it."
        if isinstance(answer, Busy) and answer.needs_person:
            wanted = "approve its funding" if answer.code == SCA_REQUIRED else "let our API key fund transfers"
            message = f"{message} A person must {wanted} at Wise; or cancel it there, if it shall not be paid."
        return Unknown(code=answer.code, message=message, evidence=answer.evidence)

    async def _after_conflict(self, made: Transfer) -> Answer:
        """Funded before, says Wise. It is asked, not believed."""
        shown = await self._look_at(made)
        if shown is not None and (shown.status in FUNDED or shown.status == CANCELLED):
            return self._settled(shown)
        return self._unknown("already_funded", f"Wise says transfer {made.id} was funded before, and does not show it.")

    async def _after_rejection(self, made: Transfer, code: str) -> Answer:
        """Cancel it, where no other send can be funding it (see above)."""
        shown = await self._look_at(made)
        if shown is not None and (shown.status in FUNDED or shown.status == CANCELLED):
            return self._settled(shown)
        is_ours_alone = self._is_first and made.quote_uuid == self._quote_id
        if shown is None or shown.status != UNFUNDED or code == _FUNDED_BEFORE or not is_ours_alone:
            return self._unknown("funding_rejected", f"The funding of transfer {made.id} was rejected ({code}).")
        return await self._cancel(made, code)

    async def _look_at(self, made: Transfer) -> Transfer | None:
        said = await self._line.ask("GET", f"/v1/transfers/{made.id}")
        self._evidence += (said.exchange,)
        if not isinstance(said.result, Reply) or said.result.status not in _SUCCESS:
            return None
        shown = read(said.result.body, Transfer)
        return shown if shown is not None and shown.id == made.id else None

    async def _cancel(self, made: Transfer, code: str) -> Answer:
        said = await self._send("PUT", f"/v1/transfers/{made.id}/cancel", b"")
        cancelled = None
        if isinstance(said, Said) and isinstance(said.result, Reply) and said.result.status in _SUCCESS:
            cancelled = read(said.result.body, Transfer)
        if cancelled is not None and cancelled.id == made.id and cancelled.status == CANCELLED:
            message = f"Wise rejected the funding of transfer {made.id}, and it is cancelled. No money moved."
            return Refused(code=code, message=message, evidence=self._evidence)
        message = f"Wise rejected the funding of transfer {made.id} ({code}), and did not confirm that it is cancelled."
        return self._unknown("cancel_unconfirmed", message)

    async def _send(self, method: str, path: str, body: bytes) -> Said | Busy:
        said = await self._line.send(method, path, headers=_JSON, body=body, sending=self._sending)
        if isinstance(said, Busy):
            return msgspec.structs.replace(said, evidence=self._evidence + said.evidence)
        self._evidence += (said.exchange,)
        if isinstance(said.result, Reply):
            self._answered = said.result.headers.get("date", "")
        return said

    def _settled(self, made: Transfer) -> Answer:
        if made.status == CANCELLED:
            message = f"Transfer {made.id} of an earlier send is {made.status}: nothing is paid under this key."
            return Refused(code="transfer_cancelled", message=message, evidence=self._evidence)
        return self._done(made)

    def _done(self, made: Transfer, *, funded_as: str | None = None) -> Answer:
        moved = movement(made, funded_as=funded_as)
        if moved is None:
            return self._unknown("answer_unreadable", "Wise's transfer cannot be read.")
        # Wise does not say that it answers from memory: its own clock does.
        return Done(movement=moved, replayed=is_older(moved.created_at, self._answered), evidence=self._evidence)

    def _unknown(self, code: str, message: str) -> Unknown:
        return Unknown(code=code, message=f"{message} It may have happened.", evidence=self._evidence)

    def _nothing_moved(self, code: str, message: str, *, needs_person: bool = False) -> Busy:
        return Busy(
            code=code,
            message=f"{message} This send made no transfer.",
            after_seconds=_PERSON_PAUSE_SECONDS if needs_person else _PAUSE_SECONDS,
            needs_person=needs_person,
            evidence=self._evidence,
        )


def _refuses(made: Transfer | Answer) -> TypeGuard[Refused | Unknown]:
    """Whether Wise refused to make it, for good or by its words alone."""
    return isinstance(made, Refused) or (isinstance(made, Unknown) and made.says_refused)
