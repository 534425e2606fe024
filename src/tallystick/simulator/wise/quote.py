"""Wise's first two calls: the quote, which fixes rate and fee, and the recipient (docs/providers.md 5, Flow).

Neither has a key. A quote costs nothing and is used once; a recipient made twice is two recipients. Rates are fixed
and the fee is half a percent, so that a test can compute both.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Annotated, Any, Final
from uuid import NAMESPACE_OID, uuid5

import msgspec

from tallystick.simulator.amounts import decimal_text, is_currency, unit_micros
from tallystick.simulator.books import EVERY, Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.records import Entry
from tallystick.simulator.wise.answer import DIALECT, Number, answer, micros_of, problem, read, text_of

PERSONAL_PROFILE: Final = 101
BUSINESS_PROFILE: Final = 102
# Units for one US dollar; a currency that is not here is worth one.
RATES: Final = {"EUR": Decimal("0.92"), "GBP": Decimal("0.79"), "JPY": Decimal(150), "BRL": Decimal(5)}
FEE: Final = Decimal("0.005")
_RATE_DIGITS: Final = Decimal("0.000001")


class QuoteRequest(msgspec.Struct, frozen=True, rename="camel"):
    """POST /profiles/{p}/quotes. One of the two amounts."""

    source_currency: str
    target_currency: str
    source_amount: Decimal | None = None
    target_amount: Decimal | None = None
    target_account: Number | None = None
    pay_out: str = "BANK_TRANSFER"
    preferred_pay_in: str | None = None


class RecipientRequest(msgspec.Struct, frozen=True, rename="camel"):
    """POST /accounts."""

    account_holder_name: Annotated[str, msgspec.Meta(min_length=1)]
    currency: str
    type: Annotated[str, msgspec.Meta(min_length=1)]
    details: dict[str, Any]
    profile: Number = PERSONAL_PROFILE


def quote(profile: str, body: bytes, books: Books, now: datetime) -> Reply:
    """POST /profiles/{p}/quotes."""
    asked = read(body, QuoteRequest)
    if isinstance(asked, Reply):
        return asked
    for currency, path in ((asked.source_currency, "sourceCurrency"), (asked.target_currency, "targetCurrency")):
        if not is_currency(currency):
            return problem(422, "error.currency.unsupported", f"{currency} is not supported", path)
    priced = _price(asked)
    if isinstance(priced, Reply):
        return priced
    source, target, fee, rate = priced
    quote_id = str(uuid5(NAMESPACE_OID, books.next_id("quote")))
    life = timedelta(seconds=int(books.switch("wise.quote_life_seconds")))
    amounts = {
        "sourceAmount": decimal_text(source, asked.source_currency),
        "targetAmount": decimal_text(target, asked.target_currency),
    }
    cost = decimal_text(fee, asked.source_currency)
    rendered = {
        "id": quote_id,
        "sourceCurrency": asked.source_currency,
        "targetCurrency": asked.target_currency,
        **amounts,
        "payOut": asked.pay_out,
        "preferredPayIn": asked.preferred_pay_in,
        "rate": str(rate),
        "rateType": "FIXED",
        "createdTime": text_of(now),
        "expirationTime": text_of(now + life),
        "rateExpirationTime": text_of(now + life),
        "profile": int(profile),
        "targetAccount": asked.target_account,
        "status": "PENDING",
        "providedAmountType": "SOURCE" if asked.source_amount is not None else "TARGET",
        "paymentOptions": [
            {
                "payIn": "BALANCE",
                "payOut": asked.pay_out,
                "sourceCurrency": asked.source_currency,
                "targetCurrency": asked.target_currency,
                **amounts,
                "fee": {"transferwise": cost, "discount": "0", "partner": "0", "total": cost},
                "disabled": False,
            }
        ],
    }
    books.insert(
        Entry(DIALECT, "quote", quote_id, "", profile, source, asked.source_currency, "waiting", now, rendered)
    )
    return answer(rendered)


def get_quote(_profile: str, quote_id: str, books: Books, _now: datetime) -> Reply:
    """GET /profiles/{p}/quotes/{id}."""
    entry = books.get(DIALECT, "quote", quote_id)
    return problem(404, "NOT_FOUND", "There is no such quote") if entry is None else answer(entry.body)


def recipient(body: bytes, books: Books, now: datetime) -> Reply:
    """POST /accounts. A word in the details ("closed", "bounce") makes payments to it come back."""
    asked = read(body, RecipientRequest)
    if isinstance(asked, Reply):
        return asked
    if not is_currency(asked.currency):
        return problem(422, "error.currency.unsupported", f"{asked.currency} is not supported", "currency")
    if not asked.details:
        return problem(422, "NOT_VALID", "details are required", "details")
    account_id = books.next_id("")
    rendered = {
        "id": int(account_id),
        "profile": asked.profile,
        "accountHolderName": asked.account_holder_name,
        "currency": asked.currency,
        "country": None,
        "type": asked.type,
        "details": asked.details,
        "active": True,
        "ownedByCustomer": False,
    }
    entry = Entry(DIALECT, "recipient", account_id, "", str(asked.profile), 0, asked.currency, "waiting", now, rendered)
    books.insert(entry)
    return answer(rendered)


def get_recipient(account_id: str, books: Books, _now: datetime) -> Reply:
    """GET /accounts/{id}."""
    entry = books.get(DIALECT, "recipient", account_id)
    return problem(404, "NOT_FOUND", "There is no such recipient") if entry is None else answer(entry.body)


def recipients(query: Mapping[str, Sequence[str]], books: Books, _now: datetime) -> Reply:
    """GET /accounts?profile=&currency=."""
    profile = query.get("profile", [str(PERSONAL_PROFILE)])[-1]
    currency = query.get("currency", [None])[-1]
    found = books.find(DIALECT, "recipient", parent=profile, limit=EVERY)
    return answer([entry.body for entry in found if currency in {None, entry.currency}])


def profiles(_books: Books, _now: datetime) -> Reply:
    """GET /profiles. Any other number is accepted as a profile too."""
    rows = [
        {"id": PERSONAL_PROFILE, "type": "personal", "details": {"firstName": "Tally", "lastName": "Stick"}},
        {"id": BUSINESS_PROFILE, "type": "business", "details": {"name": "Tallystick"}},
    ]
    return answer(rows)


def _price(asked: QuoteRequest) -> tuple[int, int, int, Decimal] | Reply:
    """(source, target, fee) in micros, and the rate. Rounded to what can be paid, in Wise's favour."""
    rate = RATES.get(asked.target_currency, Decimal(1)) / RATES.get(asked.source_currency, Decimal(1))
    rate = rate.quantize(_RATE_DIGITS).normalize()
    if (asked.source_amount is None) == (asked.target_amount is None):
        return problem(422, "NOT_VALID", "One of sourceAmount and targetAmount is required", "sourceAmount")
    if asked.source_amount is not None:
        source = micros_of(asked.source_amount, asked.source_currency, "sourceAmount")
        if isinstance(source, Reply):
            return source
        fee = _rounded(source * FEE, asked.source_currency, ROUND_CEILING)
        target = _rounded((source - fee) * rate, asked.target_currency, ROUND_FLOOR)
        if target <= 0:
            return problem(422, "error.amount.too.low", "Nothing would be left to pay", "sourceAmount")
        return source, target, fee, rate
    paid = micros_of(asked.target_amount or Decimal(0), asked.target_currency, "targetAmount")
    if isinstance(paid, Reply):
        return paid
    net = _rounded(paid / rate, asked.source_currency, ROUND_CEILING)
    fee = _rounded(net * FEE, asked.source_currency, ROUND_CEILING)
    return net + fee, paid, fee, rate


def _rounded(micros: Decimal, currency: str, rounding: str) -> int:
    unit = unit_micros(currency)
    return int((micros / unit).to_integral_value(rounding)) * unit
