"""The saga against a scripted Wise: its calls, and what they were answered."""

from datetime import timedelta

import msgspec

from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import Answer, Sending, Transfer
from tests.providers.scripted import FIRST_SENT_AT, Canned, Scripted, scripted
from tests.providers.wise.examples import API_KEY, NEW_RECIPIENT, TRANSFER, wise

QUOTING = ("POST", "/v3/profiles/102/quotes")
MAKING = ("POST", "/v1/transfers")
FUNDING = ("POST", "/v3/profiles/102/transfers/16521632/payments")
LOOKING = ("GET", "/v1/transfers/16521632")
SEARCHING = ("GET", "/v1/transfers")
CANCELLING = ("PUT", "/v1/transfers/16521632/cancel")
NEW = msgspec.structs.replace(TRANSFER, destination=msgspec.json.encode(NEW_RECIPIENT).decode())
FAULT = {"errors": [{"code": "NOT_VALID", "message": "no", "path": "targetAccount", "arguments": []}]}
UNREADABLE = [b"", b"{}", b"null", b"[]", b'"ok"', b"<html>ok</html>", b'{"id":1', b"\xff\xfe", b"[" * 100_000]
NONE_LISTED = Canned(200, [])
LEAVE_SECONDS = 30.0


def nth_leave(number: int) -> Sending:
    """The permit of a send, each before it having had its whole leave and no answer."""
    not_after = FIRST_SENT_AT + number * timedelta(seconds=LEAVE_SECONDS)
    return Sending(first_sent_at=FIRST_SENT_AT, not_after=not_after, sendable_until=steady() + LEAVE_SECONDS)


async def answered(
    *answers: Canned, transfer: Transfer = TRANSFER, number: int = 1
) -> tuple[Answer, list[tuple[str, str]], Scripted]:
    async with scripted(*answers) as server:
        port: Provider = wise(server.base)
        answer = await port.send(transfer, nth_leave(number))
        await port.close()
    assert API_KEY not in repr(answer)
    # Only what was never sent at all leaves nothing to show.
    assert len(answer.evidence) == len(server.asked)
    return answer, [(asked.method, asked.path) for asked in server.asked], server
