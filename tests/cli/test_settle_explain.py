"""`tally explain` of settlements: one timeline, under every name a settlement has."""

import json
import re
from datetime import timedelta

import pytest

from tallystick.database.explain.flow import explain
from tallystick.providers.words import Movement
from tallystick.settlement import explain as explain_settlement
from tests.cli.payouts import Payouts
from tests.settlements import A_WHILE, Shop, shop


async def test_one_timeline_under_all_of_its_names(payouts: Payouts) -> None:
    async with shop(payouts.dsn, payouts.control) as made:
        await made.set_fee("EUR", percent_ppm=25_000, fixed_micros=300_000)
        await made.create_many(5, prefix="other", squad_id="amber")
        one = await made.create("a-1", gross_micros=12_345_678)
        await made.tick()
        paid = await made.read(one.id)
    assert paid.transfer_id is not None
    by_id = payouts.run("explain", one.id)
    assert by_id.returncode == 0, by_id.stderr
    told = by_id.stdout
    assert f"settlement {one.id}" in told
    assert f"transferred: 11.73 EUR to acct_good by simulator, known there as {paid.transfer_id}" in told
    assert "0.007037 EUR is less than simulator can write, and stays payable" in told
    assert "created for attribution a-1, squad amber: gross 12.345678 EUR, fee 0.608641 EUR, net 11.737037 EUR" in told
    assert re.search(r"posted by tx_\w{32} under key '[^']+': -12.345678 EUR to settlement:clearing:EUR", told)
    assert re.search(r"posted by tx_\w{32}: claimed, with 5 others", told)
    assert re.search(r"posted by tx_\w{32}: transferred", told)
    assert re.search(r"claimed by \S+; tries so far: 0", told)
    assert re.search(rf"sent to simulator \(.+\) under key {one.idempotency_key}", told)
    assert re.search(r"attempt 1: POST /v1/transfers -> 200 req_\w+", told), "the provider's request id"
    assert f"attempt 1 answered: done {paid.transfer_id}" in told
    moments = re.findall(r"^  (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+)  ", told, re.MULTILINE)
    assert moments == sorted(moments)
    assert len(moments) >= 8

    assert payouts.run("explain", paid.transfer_id).stdout == told
    by_key = payouts.run("explain", one.idempotency_key).stdout
    assert told in by_key
    assert "intent " in by_key


async def test_questions_and_their_evidence_are_shown(payouts: Payouts) -> None:
    payouts.control.plan("stripe.transfer:execute_then_drop")
    async with shop(payouts.dsn, payouts.control) as made:
        one = await made.create("a-1")
        await made.tick()
        waiting = payouts.run("explain", one.id).stdout
        await made.pass_time(A_WHILE)
        await made.tick()
    assert "processing: 12.34 EUR" in waiting
    assert "may be taken over from" in waiting
    assert "attempt 1 answered: unknown" in waiting
    told = payouts.run("explain", one.id).stdout
    assert re.search(r"looked_up by \S+: GET /v1/transfers\S* -> 200 req_\w+", told)
    assert re.search(r"looked_up by \S+: found; tr_\w+", told)
    assert "became processing" in told
    # Found though the claim it belongs to was taken over since.
    assert re.search(r"posted by tx_\w{32}: claimed", told)
    assert re.search(r"posted by tx_\w{32}: transferred", told)


async def test_disputes_decisions_and_every_generation_are_shown(payouts: Payouts) -> None:
    payouts.control.plan("stripe.transfer:refused(account_closed)")
    async with shop(payouts.dsn, payouts.control) as made:
        one = await made.create("a-1")
        await made.tick()
        asked = await made.reviews.resolve(
            made.tenant,
            one.id,
            resolution="retry",
            reason="new bank account",
            evidence="ticket 17",
            transfer_id=None,
            by="ada",
            idempotency_key="k1",
        )
        approval = json.loads(asked.body)["approval"]["id"]
        waiting = payouts.run("explain", one.id).stdout
        await made.reviews.decide(
            made.tenant, approval, decision="approve", reason="checked it", by="grace", idempotency_key="k2"
        )
        await made.tick()
        paid = await made.read(one.id)
        await made.pass_time(timedelta(hours=1))
        await made.reviews.dispute(
            made.tenant, one.id, reason="not arrived", evidence="mail of the squad", by="ada", idempotency_key="k3"
        )
        await made.reviews.resolve(
            made.tenant,
            one.id,
            resolution="confirm",
            reason="it did arrive",
            evidence="bank statement",
            transfer_id=None,
            by="grace",
            idempotency_key="k4",
        )
    assert f"{approval} waits for another person than ada" in waiting
    told = payouts.run("explain", one.id).stdout
    assert f"{approval}: ada asked for generation 1: new bank account; evidence ticket 17" in told
    assert f"{approval}: approved by grace: checked it" in told
    assert f"under key {one.idempotency_key} (generation 0)" in told
    assert f"under key {paid.idempotency_key} (generation 1)" in told
    assert "attempt 1 answered: refused" in told
    assert f"attempt 1 answered: done {paid.transfer_id}" in told
    assert "disputed by ada: not arrived; evidence mail of the squad" in told
    assert "resolved_confirm by grace: it did arrive; evidence bank statement" in told
    moves = re.findall(r"posted by tx_\w{32}: (\w+)", told)
    assert moves == ["claimed", "failed", "claimed", "transferred", "disputed_again", "transferred"]
    # The key of the generation that failed still leads here.
    assert one.id in payouts.run("explain", one.idempotency_key).stdout


async def test_postings_are_found_among_many_others(payouts: Payouts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is looked for just after the moment it belongs to, wherever that is in a long history."""
    monkeypatch.setattr(explain_settlement, "_ENTRIES_AFTER", 1)
    async with shop(payouts.dsn, payouts.control) as made:

        async def others(prefix: str) -> None:
            for number in range(3):
                await made.create(f"{prefix}-{number}")
                await made.tick()

        await others("before")
        one = await made.create("a-1")
        await others_pending(made)
        await made.tick()
        await others("between")
        await made.reviews.dispute(
            made.tenant, one.id, reason="not arrived", evidence="mail", by="ada", idempotency_key="k1"
        )
        await others("after")
        (found,) = (await explain(made.database, made.tenant, one.id)).found
    posted = [step.what.split(": ", 1)[1] for step in found.timeline if step.what.startswith("posted by")]
    assert [text.split(",")[0] for text in posted] == [
        "-12.34 EUR to settlement:clearing:EUR",
        "claimed",
        "transferred",
        "disputed_again",
    ]


async def others_pending(made: Shop) -> None:
    """Created after it, paid with it: the creations stand between its own and its claim."""
    for number in range(3):
        await made.create(f"pending-{number}")


async def test_news_from_the_provider_are_shown(payouts: Payouts) -> None:
    async with shop(payouts.dsn, payouts.control) as made:
        one = await made.create("a-1")
        await made.tick()
        paid = await made.read(one.id)
        assert paid.transfer_id is not None
        back = Movement(
            provider="simulator",
            purpose="transfer",
            id=paid.transfer_id,
            amount_micros=one.amount_micros,
            currency="EUR",
            state="returned",
            status="reversed",
            reference=one.idempotency_key,
        )
        assert await made.reviews.observe("simulator", back) == one.id
    told = payouts.run("explain", one.id).stdout
    assert "disputed (returned_after_transferred)" in told
    assert "came_back by provider: returned_after_transferred" in told


async def test_another_tenants_settlement_is_nothing(payouts: Payouts) -> None:
    one = await payouts.create()
    payouts.run("keys", "create", "--tenant", "acme", "--for", "anna")
    for name in (one.id, one.idempotency_key):
        shown = payouts.run("explain", name, "--tenant", "acme")
        assert shown.returncode == 1
        assert shown.stdout == ""
    as_json = json.loads(payouts.run("explain", one.id, "--json").stdout)
    assert [found["what"] for found in as_json["found"]] == ["settlement"]


async def test_names_that_nobody_has_are_nothing(payouts: Payouts) -> None:
    await payouts.create()
    for name in ("st_" + "0" * 32, "st_", "tr_nobody", "0" * 64, "st_" + "Z" * 32):
        assert payouts.run("explain", name).returncode == 1
