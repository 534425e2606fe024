"""Whom Adyen can pay: how a destination is written here, and what Adyen calls it. Pure.

transferInstrument:ID, or an ID that begins with SE    a bank account that was verified beforehand
balanceAccount:BA...                                   another account inside the platform
iban:<IBAN>:<full name>                                any bank account with an IBAN
"""

import re
from typing import Any, Final, Literal

import msgspec

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BARE_INSTRUMENT: Final = re.compile(r"SE[A-Za-z0-9_-]{1,62}")
_IBAN: Final = re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}")
# Sweden's account numbers begin like Adyen's transfer instruments.
_SWEDISH_IBAN: Final = re.compile(r"SE[0-9]{22}")
_NAME_CHARACTERS: Final = 140


class Counterparty(msgspec.Struct, frozen=True):
    """The part of POST /transfers that says whom."""

    category: Literal["bank", "internal"]
    body: dict[str, Any]


def counterparty(destination: str) -> Counterparty | str:
    """Whom to pay, or what is wrong with the destination."""
    form, colon, rest = destination.partition(":")
    if not colon:
        return _bare(destination)
    match form:
        case "transferInstrument":
            return _instrument(rest)
        case "balanceAccount":
            if not _ID.fullmatch(rest):
                return "balanceAccount: is not followed by the id of a balance account."
            return Counterparty("internal", {"balanceAccountId": rest})
        case "iban":
            return _bank_account(*rest.partition(":")[::2])
        case _:
            return "The destination is neither transferInstrument:, balanceAccount: nor iban:."


def _bare(destination: str) -> Counterparty | str:
    if not _BARE_INSTRUMENT.fullmatch(destination):
        return "The destination is empty or of no known form."
    if _SWEDISH_IBAN.fullmatch(destination):
        return "This can be a Swedish IBAN: write iban:<IBAN>:<full name> or transferInstrument:<id>."
    return Counterparty("bank", {"transferInstrumentId": destination})


def _instrument(identifier: str) -> Counterparty | str:
    if not _ID.fullmatch(identifier):
        return "The id of the transfer instrument is empty or has characters no id has."
    return Counterparty("bank", {"transferInstrumentId": identifier})


def _bank_account(iban: str, name: str) -> Counterparty | str:
    number = iban.replace(" ", "")
    if not _IBAN.fullmatch(number) or not is_iban(number):
        return "The IBAN is not valid: its check digits do not fit."
    if not name.strip() or len(name) > _NAME_CHARACTERS or not name.isprintable():
        return "iban:<IBAN>: must be followed by the full name of the account's holder."
    return Counterparty(
        "bank",
        {
            "bankAccount": {
                "accountHolder": {"fullName": name.strip()},
                "accountIdentification": {"type": "iban", "iban": number},
            }
        },
    )


def is_iban(number: str) -> bool:
    """Whether the check digits fit (ISO 13616: the rearranged number leaves 1 when divided by 97)."""
    return int("".join(str(int(character, 36)) for character in number[4:] + number[:4])) % 97 == 1
