"""The saga against a scripted Wise: its calls, and what they were answered."""

import msgspec

from tallystick.core.provider import Answer, Transfer
from tallystick.providers.port import Provider
from tests.providers.scripted import Canned, Scripted, leave, scripted
from tests.providers.wise.examples import API_KEY, NEW_RECIPIENT, TRANSFER, wise

QUOTING = ("POST", "/v3/profiles/102/quotes")
MAKING = ("POST", "/v1/transfers")
FUNDING = ("POST", "/v3/profiles/102/transfers/16521632/payments")
LOOKING = ("GET", "/v1/transfers/16521632")
CANCELLING = ("PUT", "/v1/transfers/16521632/cancel")
NEW = msgspec.structs.replace(TRANSFER, destination=msgspec.json.encode(NEW_RECIPIENT).decode())
FAULT = {"errors": [{"code": "NOT_VALID", "message": "no", "path": "targetAccount", "arguments": []}]}
UNREADABLE = [b"", b"{}", b"null", b"[]", b'"ok"', b"<html>ok</html>", b'{"id":1', b"\xff\xfe"]


async def answered(*answers: Canned, transfer: Transfer = TRANSFER) -> tuple[Answer, list[tuple[str, str]], Scripted]:
    async with scripted(*answers) as server:
        port: Provider = wise(server.base)
        answer = await port.transfer(transfer, leave())
        await port.close()
    assert API_KEY not in repr(answer)
    # Only what was never sent at all leaves nothing to show.
    assert len(answer.evidence) == len(server.asked)
    return answer, [(asked.method, asked.path) for asked in server.asked], server
