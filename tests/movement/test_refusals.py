"""Refusals under no code that we know: believed where nothing else can be behind them, and never otherwise."""

import http.client
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from tallystick.providers.words import Answer, Done, Refund, Refused, Sending, Transfer, Unknown
from tests import servers, simulators
from tests.ledgers import broken
from tests.payments import CHARGING, age, charged, checkout
from tests.providers.scripted import Asked, Canned, answering
from tests.providers.worlds import API_KEY, WORLDS, Control, World
from tests.sagas import Desk, desk
from tests.settlements import A_WHILE, Row, Shop, books, ledger_differences, pass_time, rows, shop

# Its time goes ahead here, and never comes back.
payouts_simulator = simulators.own

# In each provider's own words, by dialect; none of them is a code that its table names.
UNLISTED = {
    "stripe": "currency_not_supported",
    "adyen": "29_001",
    "square": "BAD_REQUEST",
}
CAPABILITIES = "insufficient_capabilities_for_transfer"


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def payer(dsn: str, control: Control) -> AsyncIterator[Shop]:
    async with shop(dsn, control) as opened:
        yield opened


@pytest.fixture
async def till(dsn: str, control: Control) -> AsyncIterator[Desk]:
    async with desk(dsn, control) as opened:
        yield opened


async def only(payer: Shop) -> Row:
    (row,) = await rows(payer.dsn)
    return row


def lose_the_first_answer(payer: Shop) -> list[Answer]:
    """What the provider said to the first send comes here, and nobody else hears it."""
    provider: Any = payer.providers["simulator"]
    original = provider.send
    unheard: list[Answer] = []

    async def send(instruction: Transfer, sending: Sending) -> Answer:
        answer: Answer = await original(instruction, sending)
        if unheard:
            return answer
        unheard.append(answer)
        return Unknown(code="unanswered", message="")

    provider.send = send
    return unheard


# --- payouts


async def test_a_payout_that_is_refused_under_no_code_we_know_fails_after_one_send(
    payer: Shop, control: Control
) -> None:
    await payer.create("p")
    control.plan(f"stripe.transfer:refused({CAPABILITIES})")
    ticked = await payer.tick()
    assert (ticked.sent, ticked.failed, ticked.waiting) == (1, 1, 0)
    assert (await only(payer)).reason == CAPABILITIES
    assert books(control) == []
    assert await broken(payer.dsn) == {}
    assert await ledger_differences(payer.dsn) == {}


async def test_a_replayed_refusal_speaks_for_the_send_that_nobody_heard(payer: Shop, control: Control) -> None:
    """The refusal is stored under the key and its answer is lost: the second send is answered from the store."""
    await payer.create("p")
    control.plan(f"stripe.transfer:refused({CAPABILITIES})")
    unheard = lose_the_first_answer(payer)
    assert (await payer.tick()).waiting == 1
    assert [type(answer) for answer in unheard] == [Unknown]
    await pass_time(payer.dsn, A_WHILE)
    ticked = await payer.tick()
    assert (ticked.sent, ticked.failed) == (1, 1)
    assert (await only(payer)).reason == CAPABILITIES
    assert books(control) == []


async def test_a_refusal_after_a_send_that_may_have_run_is_not_believed_by_its_words(
    payer: Shop, control: Control
) -> None:
    """What became of the first nobody knows. The refusal of the second is not from the store: no word on it."""
    await payer.create("p")
    control.plan(f"stripe.transfer:drop_before, stripe.transfer:refused({CAPABILITIES})@2")
    assert (await payer.tick()).waiting == 1
    await pass_time(payer.dsn, A_WHILE)
    ticked = await payer.tick()
    assert (ticked.sent, ticked.failed, ticked.waiting) == (1, 0, 1)
    assert (await only(payer)).status == "processing"


async def test_a_payout_older_than_its_keys_memory_is_not_failed_by_words_alone(payer: Shop, control: Control) -> None:
    """A life of the database that was lost may have paid it, under a key that the provider has forgotten."""
    await payer.create("p")
    await pass_time(payer.dsn, timedelta(hours=25))
    control.plan(f"stripe.transfer:refused({CAPABILITIES})")
    ticked = await payer.tick()
    assert (ticked.sent, ticked.failed) == (1, 0)
    assert (await only(payer)).status == "processing"


# What each of them says when it cannot do what was asked for, by step and status; all are rows of their tables.
OWN_WORDS = {
    "adyen": {"type": "https://docs.adyen.com/errors", "title": "Not done", "detail": "No.", "errorCode": "30_999"},
    "wise": {"errors": [{"code": "NOT_VALID", "message": "No.", "path": "details.reference"}]},
}
STEPS = {"adyen": ["/transfers"], "wise": ["/quotes", "/accounts", "/transfers"]}
REFUSED_AT = [(name, step, status) for name, steps in STEPS.items() for step in steps for status in (400, 422)]
# What others answer so: RFC 7807 without anything of theirs, an error of theirs with a hole in it, a page, nothing.
FOREIGN = {
    "a problem": {"type": "about:blank", "title": "Bad Request", "detail": "No.", "status": 400},
    "a hole": {"title": "Not done", "detail": "No.", "errorCode": "", "errors": [{"code": "", "message": "No."}]},
    "a page": b"<html><body>400 Bad Request</body></html>",
    "nothing": b"",
}


class Gateway:
    """Between us and a provider: what is posted to one of its steps is answered here, and never arrives."""

    def __init__(self, url: str, step: str, answer: Canned) -> None:
        self._netloc = urllib.parse.urlsplit(url).netloc
        self._step = step
        self._answer = answer
        # What was posted, the others too.
        self.posted: list[str] = []

    def __call__(self, asked: Asked) -> Canned:
        self.posted += [asked.path] if asked.method == "POST" else []
        if asked.method == "POST" and asked.path.endswith(self._step):
            return self._answer
        kept = {name: value for name, value in asked.headers.items() if name.lower() not in ("host", "content-length")}
        query = urllib.parse.urlencode(asked.query, doseq=True)
        connection = http.client.HTTPConnection(self._netloc, timeout=30)
        try:
            connection.request(asked.method, f"{asked.path}?{query}", asked.body, kept)
            reply = connection.getresponse()
            return Canned(reply.status, reply.read())
        finally:
            connection.close()


@asynccontextmanager
async def paying_by(name: str, dsn: str, url: str) -> AsyncIterator[Shop]:
    """A shop that owes a payout by this provider, which is at that address."""
    world = next(world for world in WORLDS if world.name == name)
    provider = world.make(url, "", "")
    try:
        async with shop(dsn, Control(url), providers={name: provider}) as opened:
            await opened.create("p", provider=name, destination=world.destination)
            yield opened
    finally:
        await provider.close()


@pytest.mark.parametrize(("name", "step", "status"), REFUSED_AT)
async def test_a_payout_refused_in_a_providers_own_words_fails_after_one_send(
    dsn: str, control: Control, name: str, step: str, status: int
) -> None:
    gateway = Gateway(control.url, step, Canned(status, OWN_WORDS[name]))
    async with answering(gateway) as between, paying_by(name, dsn, between.base) as payer:
        ticked = await payer.tick()
        assert (ticked.sent, ticked.failed, ticked.waiting) == (1, 1, 0)
        row = await only(payer)
        assert (row.status, row.reason) == ("failed", {"adyen": "30_999", "wise": "NOT_VALID"}[name])
        await pass_time(dsn, A_WHILE)
        assert (await payer.tick()).sent == 0
        assert [path.endswith(step) for path in gateway.posted].count(True) == 1
        assert books(control) == []
        assert await broken(dsn) == {}
        assert await ledger_differences(dsn) == {}


@pytest.mark.parametrize("said", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize(("name", "step", "status"), REFUSED_AT)
async def test_the_same_status_with_a_foreign_body_ends_no_payout(
    dsn: str, control: Control, *, name: str, step: str, status: int, said: object
) -> None:
    """A gateway in between answers so, too: what it kept from us nobody knows. It is sent again, under its key."""
    gateway = Gateway(control.url, step, Canned(status, said))
    async with answering(gateway) as between, paying_by(name, dsn, between.base) as payer:
        ticked = await payer.tick()
        assert (ticked.sent, ticked.failed, ticked.waiting) == (1, 0, 1)
        row = await only(payer)
        assert row.status == "processing"
        assert await broken(dsn) == {}


@pytest.mark.parametrize(("name", "word"), [("adyen", "30_999"), ("wise", "NOT_VALID")])
async def test_a_payout_that_the_provider_itself_refuses_is_failed_once(
    dsn: str, control: Control, name: str, word: str
) -> None:
    async with paying_by(name, dsn, control.url) as payer:
        control.plan(f"{name}.transfer:refused({word})")
        ticked = await payer.tick()
        assert (ticked.sent, ticked.failed, (await only(payer)).reason) == (1, 1, word)
        assert control.struck() == {"refused": 1}
        await pass_time(dsn, A_WHILE)
        assert (await payer.tick()).sent == 0
        assert books(control) == []


# --- charges


@pytest.mark.parametrize("world", CHARGING, ids=lambda world: world.name)
async def test_a_charge_that_is_refused_under_no_code_we_know_is_refused_to_the_buyer(
    dsn: str, control: Control, world: World
) -> None:
    control.plan(f"{world.name}.charge:refused({UNLISTED[world.name]})")
    async with checkout(dsn, control, world) as till:
        order = await till.order()
        assert await till.refused(order) == "payment_refused"
        assert await till.statuses(order) == ["FAILED"]
        assert await till.answers() == ["refused"]
        paid = await till.paying(order)
        assert paid.payment.attempts == 2
    assert len(charged(control, world)) == 1


# --- refunds


def refund_outside(control: Control, payment: str, amount: int) -> None:
    """As somebody with the provider's dashboard does it."""
    request = urllib.request.Request(
        f"{control.url}/stripe/v1/refunds",
        urllib.parse.urlencode({"payment_intent": payment, "amount": amount}).encode(),
        {"authorization": f"Bearer {API_KEY}"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.status == 200


async def test_a_refund_above_what_is_left_is_compared_with_the_books_and_is_a_persons_at_once(till: Desk) -> None:
    order, payment = await till.ghost()
    refund_outside(till.shop.control, payment, 100)
    await till.tell(payment)
    await till.run()
    (row,) = await till.refunds_of(order)
    assert (row.view.status, row.view.reason) == ("FAILED", "invalid_request_error")
    assert len(till.given_back()) == 1
    assert "refund_failed" in await till.breaks()
    await age(till.dsn)
    swept = await till.refunds.sweep()
    assert (swept.claimed, swept.sent) == (0, 0)


@pytest.mark.parametrize("refusal", ["charge_already_refunded", "invalid_request_error"])
async def test_a_refund_that_the_books_show_is_completed_whatever_its_refusal_says(till: Desk, refusal: str) -> None:
    """Called failed, a person would give the money back a second time."""
    order, payment = await till.ghost()
    provider: Any = till.shop.provider
    original = provider.send

    async def send(instruction: Refund, sending: Sending) -> Answer:
        assert isinstance(instruction, Refund)
        assert isinstance(await original(instruction, sending), Done)
        return Refused(code=refusal, message="")

    provider.send = send
    await till.tell(payment)
    await till.run()
    (row,) = await till.refunds_of(order)
    (made,) = till.given_back()
    assert (row.view.status, row.view.refund_id) == ("COMPLETED", made["id"])
    assert await till.breaks() == []


async def test_a_refund_that_may_have_run_and_is_refused_is_a_persons_at_once(till: Desk) -> None:
    """It is not failed: the send before may have given it back. It is not sent six times in silence either."""
    order, payment = await till.ghost()
    till.shop.control.plan("stripe.refund:drop_before")
    await till.tell(payment)
    await till.run()
    refund_outside(till.shop.control, payment, 100)
    await age(till.dsn)
    swept = await till.refunds.sweep()
    assert (swept.sent, swept.failed, swept.waiting) == (1, 0, 1)
    (row,) = await till.refunds_of(order)
    assert (row.view.status, row.view.reason) == ("PENDING", "invalid_request_error")
    # Not before an hour has passed.
    await age(till.dsn, timedelta(minutes=30))
    assert (await till.refunds.sweep()).claimed == 0
