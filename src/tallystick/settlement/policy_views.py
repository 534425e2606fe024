"""Fee policies over HTTP: the platform's part of the payouts that are created from now on."""

from datetime import datetime
from typing import Final

import msgspec

from tallystick.app import Service
from tallystick.errors import OutcomeUnknown, Unreachable
from tallystick.http.call import Call, Reply, json_reply
from tallystick.http.reading import read
from tallystick.ledger.kinds import currency_fault
from tallystick.ledger.outcome import Rejected
from tallystick.money.amounts import MAX_MICROS
from tallystick.settlement import store as settlement
from tallystick.settlement.store import PolicyView
from tallystick.settlement.terms import Policy

# How the currencies without a fee of their own are called; no ISO 4217 code has seven letters.
DEFAULT: Final = "default"
WHOLE_PPM: Final = 1_000_000


class FeeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fee: a share of the gross in parts per million, plus a fixed amount, and at least a minimum."""

    percent_ppm: int = 0
    fixed_micros: int = 0
    minimum_micros: int = 0


class FeePolicy(msgspec.Struct, frozen=True):
    """The fee of settlements in a currency; `default` is that of every currency without its own."""

    currency: str
    percent_ppm: int
    fixed_micros: int
    minimum_micros: int
    changed_by: str
    changed_at: datetime


class FeePolicies(msgspec.Struct, frozen=True):
    """The tenant's fees. A currency that is not here, and no `default`: no fee."""

    policies: list[FeePolicy]


class SettlementPolicies:
    """The endpoints of fee policies."""

    def __init__(self, service: Service) -> None:
        """Whoever changes a fee is known by his key's prefix."""
        self._database = service.database
        self._decode = msgspec.json.Decoder(FeeRequest).decode

    async def list(self, call: Call) -> Reply | Rejected:
        """Every fee of the tenant."""
        query = call.query()
        if isinstance(query, Rejected):
            return query
        found = await settlement.policy(self._database, call.access.tenant)
        return json_reply(200, FeePolicies([_shown(one) for one in found]))

    async def put(self, call: Call) -> Reply | Rejected:
        """Give a currency this fee, from now on. What was created before keeps its own."""
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        asked = read(self._decode, body)
        if isinstance(asked, Rejected):
            return asked
        name = call.path("currency")
        refusal = (None if name == DEFAULT else currency_fault(name)) or _fee_fault(name, asked)
        if refusal is not None:
            return refusal
        fee = Policy(
            percent_ppm=asked.percent_ppm, fixed_micros=asked.fixed_micros, minimum_micros=asked.minimum_micros
        )
        currency = "" if name == DEFAULT else name
        # In flight: settlements that are being created hold the fee they were promised.
        await settlement.put_policy(self._database, call.access.tenant, currency, fee, by=call.access.author)
        try:
            found = await settlement.policy(self._database, call.access.tenant)
        except Unreachable as error:
            # It is changed; only the look at it failed.
            raise OutcomeUnknown from error
        (stored,) = (one for one in found if one.currency == currency)
        return json_reply(200, _shown(stored))


def _shown(policy: PolicyView) -> FeePolicy:
    return FeePolicy(
        policy.currency or DEFAULT,
        policy.percent_ppm,
        policy.fixed_micros,
        policy.minimum_micros,
        policy.changed_by,
        policy.changed_at,
    )


def _fee_fault(name: str, fee: FeeRequest) -> Rejected | None:
    amounts = fee.fixed_micros, fee.minimum_micros
    if not 0 <= fee.percent_ppm <= WHOLE_PPM or not all(0 <= amount <= MAX_MICROS for amount in amounts):
        return Rejected(
            "fee_invalid",
            "A part of the fee is negative, more than the whole, or more than can be held.",
            f"percent_ppm is 0 to {WHOLE_PPM}; fixed_micros and minimum_micros are whole micros from 0.",
        )
    if name == DEFAULT and any(amounts):
        return Rejected(
            "fee_invalid",
            "A fixed or least amount is given for all currencies, and it would be another value in each.",
            "Give it to each currency of its own; the default has percent_ppm alone.",
        )
    return None
