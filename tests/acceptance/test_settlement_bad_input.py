"""What cannot be settled, and what must not be settled twice: said in words, and nothing moves."""

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from tallystick.ledger.outcome import Rejected
from tallystick.settlement.store import Made
from tallystick.settlement.tick import flow as settling
from tests.acceptance.function import terminated
from tests.ledgers import broken
from tests.providers.worlds import WORLDS, Control
from tests.settlements import A_WHILE, Shop, books, ledger_differences, pass_time, shop

ADYEN, SQUARE, WISE = (next(each for each in WORLDS if each.name == name) for name in ("adyen", "square", "wise"))

# Each with what is wrong, the code, and a part of what the person is told.
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("no destination", {"destination": ""}, "destination_invalid", "destination"),
    ("a destination of no form the provider has", {"destination": "Ada's bank"}, "destination_invalid", "acct_"),
    ("a control character", {"destination": "acct_1\n"}, "destination_invalid", "printable"),
    ("a provider that is not configured", {"provider": "wise"}, "provider_not_configured", "simulator"),
    ("no provider at all", {"provider": ""}, "provider_not_configured", "simulator"),
    ("a currency that is none", {"currency": "XTS"}, "currency_unknown", "XTS"),
    ("gold", {"currency": "XAU"}, "currency_unknown", "XAU"),
    ("a currency in small letters", {"currency": "eur"}, "currency_unknown", "eur"),
    ("nothing", {"gross_micros": 0}, "amount_not_positive", "gross_micros"),
    ("less than nothing", {"gross_micros": -5_000_000}, "amount_not_positive", "gross_micros"),
    ("more than can be held", {"gross_micros": 2**63}, "amount_overflow", "gross_micros"),
    ("a fraction", {"gross_micros": 12.5}, "amount_not_integer", "gross_micros"),
    ("a text", {"gross_micros": "12500000"}, "amount_not_integer", "gross_micros"),
    ("a truth", {"gross_micros": True}, "amount_not_integer", "gross_micros"),
    ("less than the provider can pay", {"gross_micros": 9_999}, "net_not_payable", "0.01"),
    ("no attribution", {"attribution_id": ""}, "attribution_invalid", "attribution"),
    ("an attribution with a space", {"attribution_id": "bounty 1"}, "attribution_invalid", "attribution"),
    ("an endless attribution", {"attribution_id": "x" * 201}, "attribution_invalid", "200"),
    ("no squad", {"squad_id": ""}, "squad_invalid", "squad"),
    ("a squad that is no part of an account's name", {"squad_id": "amber/red"}, "squad_invalid", "squad"),
]


async def nothing_exists(one: Shop) -> None:
    assert await one.balances() == {}
    assert (await one.tick()).claimed == 0
    assert books(one.control) == []
    assert await broken(one.dsn) == {}


async def test_what_cannot_be_settled_is_refused_in_words(one: Shop) -> None:
    for what, fields, code, words in REFUSED:
        answer = await one.propose(fields.get("attribution_id", "bounty-1"), **{"key": "k", **fields})
        assert isinstance(answer, Rejected), what
        assert answer.code == code, what
        assert words in str(answer), (what, answer)
    await nothing_exists(one)
    # None of them has used the key.
    assert isinstance(await one.propose("bounty-1", key="k"), Made)


@pytest.mark.parametrize(
    ("fee", "gross", "code"),
    [
        ({"fixed_micros": 12_340_000}, 12_340_000, "net_not_positive"),
        ({"fixed_micros": 20_000_000}, 12_340_000, "net_not_positive"),
        ({"percent_ppm": 1_000_000}, 12_340_000, "net_not_positive"),
        ({"minimum_micros": 12_340_001}, 12_340_000, "net_not_positive"),
        ({"fixed_micros": 12_331_000}, 12_340_000, "net_not_payable"),
    ],
)
async def test_a_fee_that_leaves_nothing_to_pay(one: Shop, fee: dict[str, int], gross: int, code: str) -> None:
    await one.set_fee("EUR", **fee)
    answer = await one.propose("bounty-1", gross_micros=gross)
    assert isinstance(answer, Rejected)
    assert answer.code == code
    await nothing_exists(one)


async def test_the_smallest_payout_there_is(one: Shop) -> None:
    """One cent after the fee, and the rest of a cent stays owed."""
    await one.set_fee("EUR", fixed_micros=100_000, percent_ppm=20_000)
    view = await one.create("bounty-1", gross_micros=112_300)
    assert (view.fee_micros, view.net_micros, view.amount_micros, view.residue_micros) == (102_246, 10_054, 10_000, 54)
    await one.tick()
    assert [movement.amount_micros for movement in one.moved(view)] == [10_000]
    assert (await one.balances())["payable:EUR:amber"] == 54


async def test_a_provider_that_pays_nobody(dsn: str, control: Control) -> None:
    square = SQUARE.make(control.url, "http://127.0.0.1/hook", "")
    async with shop(dsn, control, providers={"square": square}) as one:
        answer = await one.propose("bounty-1", provider="square", destination="somebody")
        assert isinstance(answer, Rejected)
        assert "third part" in str(answer)
        await nothing_exists(one)
    await square.close()


async def test_an_iban_with_a_slip_of_the_finger(dsn: str, control: Control) -> None:
    """Refused when it is promised, not weeks later by a bank."""
    adyen = ADYEN.make(control.url, "", "")
    async with shop(dsn, control, providers={"adyen": adyen}) as one:
        for destination in ("iban:DE89370400440532013001:Ada Lovelace", "iban:DE89370400440532013000:"):
            answer = await one.propose("bounty-1", provider="adyen", destination=destination)
            assert isinstance(answer, Rejected), destination
            assert answer.code == "destination_invalid"
        await nothing_exists(one)
        good = await one.propose("b", provider="adyen", destination="iban:DE89370400440532013000:Ada Lovelace")
        assert isinstance(good, Made)
    await adyen.close()


async def test_a_currency_that_only_the_provider_knows_it_cannot_pay(dsn: str, control: Control) -> None:
    """It could be promised. Refused when it is sent, it is failed, and owed again."""
    wise = WISE.make(control.url, "", "")
    control.plan("wise.transfer:refused(error.currency.unsupported)")
    async with shop(dsn, control, providers={"wise": wise}) as one:
        view = await one.create("bounty-1", provider="wise", destination="1234", currency="SSP")
        await one.tick()
        now = await one.read(view.id)
        assert (now.status, now.reason, one.moved(view)) == ("failed", "error.currency.unsupported", [])
        assert await one.balances() == {"clearing:SSP": -12_340_000, "payable:SSP:amber": 12_340_000}
    await wise.close()


async def test_a_refusal_under_no_code_we_know_is_the_end_of_a_payout_that_was_never_sent_before(
    one: Shop, control: Control
) -> None:
    """Its type says that the request is wrong, and nothing else of this payout can be at the provider."""
    control.plan("stripe.transfer:refused(currency_of_the_future)@*")
    view = await one.create("bounty-1")
    await one.until_quiet(span=timedelta(minutes=10))
    now = await one.read(view.id)
    assert (now.status, now.reason, one.moved(view)) == ("failed", "currency_of_the_future", [])
    assert control.struck()["refused"] == 1
    assert await ledger_differences(one.dsn) == {}


async def test_a_refusal_after_a_send_that_may_have_run_is_believed_when_it_comes_from_the_store(
    one: Shop, control: Control
) -> None:
    """The second send's answer speaks of itself alone, the third's is what is stored under the key: of all three."""
    control.plan("stripe.transfer:drop_before, stripe.transfer:refused(currency_of_the_future)@2")
    view = await one.create("bounty-1")
    ticks = [await one.tick()]
    while (await one.read(view.id)).status == "processing":
        await pass_time(one.dsn, A_WHILE)
        ticks.append(await one.tick())
    assert [tick.sent for tick in ticks] == [1, 1, 1]
    now = await one.read(view.id)
    assert (now.status, now.reason, one.moved(view)) == ("failed", "currency_of_the_future", [])
    assert await ledger_differences(one.dsn) == {}


@pytest.mark.parametrize(
    ("other", "both"),
    [
        ({"gross_micros": 99_000_000}, ("12.34 EUR", "99.00 EUR")),
        ({"currency": "USD"}, ("EUR", "USD")),
        ({"destination": "acct_other"}, ("acct_good", "acct_other")),
    ],
)
async def test_the_same_attribution_with_other_contents_is_a_conflict_that_names_both(
    one: Shop, other: dict[str, Any], both: tuple[str, str]
) -> None:
    view = await one.create("bounty-1")
    for moment in ("pending", "transferred"):
        assert (await one.read(view.id)).status == moment
        answer = await one.propose("bounty-1", key=f"again-{moment}", **other)
        assert isinstance(answer, Rejected)
        assert answer.code == "settlement_conflict"
        assert all(words in answer.detail for words in (view.id, *both)), answer
        assert answer.fields == tuple(other)
        await one.tick()
    assert len(books(one.control)) == 1


async def test_created_again_it_is_the_one_that_exists(one: Shop) -> None:
    """Under its key as it was answered then, under another as it stands now; and it is paid once."""
    first = await one.propose("bounty-1", key="first")
    await one.tick()
    again = await one.propose("bounty-1", key="first")
    other = await one.propose("bounty-1", key="second")
    assert isinstance(first, Made)
    assert isinstance(again, Made)
    assert isinstance(other, Made)
    assert (again.view, again.is_replayed) == (first.view, True)
    assert (other.view.id, other.view.status, other.is_new) == (first.view.id, "transferred", False)
    await one.tick()
    assert len(books(one.control)) == 1
    assert await one.balances() == {"clearing:EUR": -12_340_000, "paid_out:EUR:simulator": 12_340_000}


async def test_created_by_many_at_once_it_is_one(one: Shop) -> None:
    made = await asyncio.gather(*(one.propose("bounty-1", key=f"k{number % 5}") for number in range(50)))
    assert all(isinstance(answer, Made) for answer in made)
    assert len({answer.view.id for answer in made if isinstance(answer, Made)}) == 1
    assert sum(answer.is_new and not answer.is_replayed for answer in made if isinstance(answer, Made)) == 1
    await one.tick()
    assert len(books(one.control)) == 1
    assert await one.balances() == {"clearing:EUR": -12_340_000, "paid_out:EUR:simulator": 12_340_000}


async def test_a_destination_the_provider_does_not_know_fails_alone(one: Shop) -> None:
    """In the middle of good ones; each of which is paid."""
    odd = {"unknown": "resource_missing", "closed": "account_closed", "restricted": "transfers_not_allowed"}
    await one.create_many(20)
    views = {word: await one.create(word, destination=f"acct_{word}") for word in odd}
    await one.create_many(20, prefix="b")
    ticked = await one.tick()
    assert (ticked.transferred, ticked.failed) == (40, 3)
    for word, view in views.items():
        now = await one.read(view.id)
        assert (now.status, now.reason, one.moved(view)) == ("failed", odd[word], [])
    assert (await one.halves()).is_equal


class _Wrong(datetime):
    """This machine's clock, wrong by a day."""

    skew = timedelta()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + cls.skew


@pytest.mark.parametrize("skew", [timedelta(days=1), timedelta(days=-1)], ids=["a day ahead", "a day behind"])
async def test_a_worker_whose_clock_is_wrong_by_a_day(
    one: Shop, control: Control, monkeypatch: pytest.MonkeyPatch, skew: timedelta
) -> None:
    """It takes nothing over too early or too late, sends within its permit, and writes down the database's time."""
    stuck = await one.create("bounty-1")
    await terminated(one, "before_the_send")
    monkeypatch.setattr(_Wrong, "skew", skew)
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + skew.total_seconds())
    for name, module in list(sys.modules.items()):
        if name.startswith("tallystick.") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", _Wrong)
    wrong = vars(settling)["datetime"].now(UTC)
    assert abs(wrong - datetime.now(UTC) - skew) < timedelta(minutes=1)
    fresh = await one.create("bounty-2")
    ticked = await one.tick()
    assert (ticked.claimed, ticked.reclaimed, ticked.transferred) == (1, 0, 1)
    assert one.moved(stuck) == []
    assert len(one.moved(fresh)) == 1
    async with one.database.owning() as connection:
        off = await connection.fetchval(
            "SELECT max(abs(extract(epoch FROM at - clock_timestamp()))) FROM ("
            " SELECT sent_at AS at FROM tally.attempt UNION ALL SELECT first_sent_at FROM tally.intent"
            " UNION ALL SELECT answered_at FROM tally.attempt UNION ALL SELECT created_at FROM tally.settlement"
            " UNION ALL SELECT claimed_at FROM tally.settlement_state) AS moments"
        )
    assert off < 600
    await one.pass_time(A_WHILE)
    assert (await one.tick()).reclaimed == 1
    assert len(one.moved(stuck)) == 1
    assert (await one.halves()).is_equal
    # A day behind or ahead, it is still within the provider's memory, and past it after two: by the database's clock.
    late = await one.create("bounty-3")
    await terminated(one, "before_the_send")
    await one.pass_time(timedelta(hours=20))
    assert (await one.tick()).sent == 1
    assert len(one.moved(late)) == 1
