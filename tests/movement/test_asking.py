"""Asked about a charge, the books are read by the provider's clock as well as by ours."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tallystick.movement import asking
from tallystick.providers.scanning import window
from tallystick.providers.words import Absent, Found, Instruction, Looked, Lookup, Movement
from tests.providers.stripe.samples import CHARGE, REFERENCE

NOW = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)
HOURS = timedelta(hours=5)
CREATED = NOW - timedelta(minutes=10)
SENT = NOW - timedelta(minutes=8)
SETTLED = NOW - timedelta(minutes=5)


class Books:
    """A provider whose clock is ahead of ours by `wrong`, and shows it with its first answer, or before."""

    def __init__(self, wrong: timedelta, *, is_known: bool) -> None:
        self._wrong = wrong
        self._is_known = is_known

    def time(self) -> datetime | None:
        return NOW + self._wrong if self._is_known else None

    async def look_up(
        self, asked: Instruction, *, first_sent_at: datetime, now: datetime, until: datetime | None
    ) -> Looked:
        assert asked == CHARGE
        self._is_known = True
        first, last = window(first_sent_at, now=now, until=until)
        if not first <= SENT + self._wrong <= last:
            return Absent(lookup=Lookup.SCAN)
        moved = Movement(
            provider="stripe",
            purpose="charge",
            id="pi_1",
            amount_micros=CHARGE.amount_micros,
            currency=CHARGE.currency,
            state="moved",
            status="succeeded",
            reference=REFERENCE,
        )
        return Found(movements=(moved,))


@pytest.mark.parametrize("is_known", [True, False], ids=["known before", "told by its answer"])
@pytest.mark.parametrize("wrong", [-HOURS, timedelta(), HOURS], ids=["behind", "equal", "ahead"])
async def test_a_charge_is_found_by_a_clock_that_is_hours_apart(wrong: timedelta, *, is_known: bool) -> None:
    """Read from too late, or not until late enough, it counts as absent, and is sent again."""
    books: Any = Books(wrong, is_known=is_known)
    looked = await asking.look_up(books, CHARGE, (), since=CREATED, now=NOW, until=SETTLED)
    assert isinstance(looked, Found), looked


def test_a_payout_in_somebody_elses_account_is_no_other_payout_of_ours() -> None:
    """He can write any key beside it, and any name."""
    key, mine = bytes(32), "settlement-1"

    def paid(id_: str, *, reference: str = "", about: str = "") -> Movement:
        return Movement(
            provider="stripe",
            purpose="payout",
            id=id_,
            amount_micros=1_000_000,
            currency="EUR",
            state="moved",
            status="paid",
            reference=reference,
            about=about,
        )

    theirs = paid("acct_theirs/po_1", reference=key.hex()), paid("acct_theirs/po_2", about=mine)
    listed = asking.Listed(known_until=NOW, read_at=NOW, lookup=Lookup.SCAN, movements=theirs)
    assert isinstance(listed.of(mine, key, "acct_ours"), Absent)
    assert isinstance(listed.of(mine, key, "acct_ours/ba_1"), Absent)
    ours = listed.of(mine, key, "acct_theirs/ba_1")
    assert isinstance(ours, Found)
    assert ours.movements == theirs
