"""`tally explain` knows every id it prints and every id it was given; of what it does not know it claims nothing."""

import json
import re
from collections.abc import Iterator

import pytest

from tallystick.access.store import ensure_tenant
from tallystick.audit.author import acting
from tallystick.checkout.order.rules import token_name
from tallystick.database.explain import lead as explain_lead
from tests.checkout.saga.test_flow import by_hand
from tests.cli.payouts import Payouts
from tests.ledgers import fetchval
from tests.sagas import desk
from tests.settlements import shop

# Ours, the providers', their requests and their events; keys and digests.
_IDS = re.compile(r"\b(?:(?:tx|or|rt|st|ap|pi|re|tr|ch|req|evt)_\w+|[0-9a-f]{64})\b")


def _ids(text: str) -> Iterator[str]:
    yield from dict.fromkeys(_IDS.findall(text))


async def test_every_id_that_is_printed_of_a_refunded_order_leads_back_to_it(payouts: Payouts) -> None:
    async with desk(payouts.dsn, payouts.control) as made:
        order, payment = await made.ghost("basket-1")
        await made.tell(payment)
        await made.run()
        (refund,) = await made.refunds_of(order)
        assert refund.view.status == "COMPLETED"
        token = token_name(
            await fetchval(payouts.dsn, f"SELECT reservation_token FROM tally.orders WHERE id = '{order.id[3:]}'")
        )
        tenant = made.shop.tenant.name
    told = payouts.run("explain", order.id, "--tenant", tenant).stdout
    found = set(_ids(told))
    kinds = {name.split("_")[0] for name in found}
    assert {"or", "pi", "re", "req"} <= kinds, told
    assert any(len(name) == 64 for name in found), "provider keys"
    for name in (*sorted(found), token, "basket-1", refund.view.refund_id or "", payment):
        shown = payouts.run("explain", name, "--tenant", tenant)
        assert shown.returncode == 0, f"{name}: {shown.stderr}"
        assert f"order {order.id}" in shown.stdout, name


@pytest.mark.parametrize("is_decided", [False, True], ids=["asked", "decided"])
async def test_every_id_that_two_persons_speak_of_leads_back_to_the_order(
    payouts: Payouts, *, is_decided: bool
) -> None:
    """Given back by hand: the refund is in no log of ours until the second person agreed."""
    async with desk(payouts.dsn, payouts.control) as made:
        order, payment = await made.ghost("basket-1")
        given = await by_hand(made, payment)
        await made.tell(payment)
        await made.run()
        if is_decided:
            assert await made.decided(order, payment, "confirm", refund_id=given) == "REFUND"
        else:
            with acting("anna/tsk_anna"):
                await made.refunds.decisions.decide(made.shop.tenant, order.id, payment, "confirm", refund_id=given)
        tenant = made.shop.tenant.name
    told = payouts.run("explain", order.id, "--tenant", tenant).stdout
    found = set(_ids(told))
    assert {"or", "ap", "pi", "re"} <= {name.split("_")[0] for name in found}, told
    assert given in found
    assert ("approved by bert/tsk_bert" in told, "waits for another person than anna/tsk_anna" in told) == (
        is_decided,
        not is_decided,
    )
    for name in sorted(found):
        shown = payouts.run("explain", name, "--tenant", tenant)
        assert shown.returncode == 0, f"{name}: {shown.stderr}"
        assert f"order {order.id}" in shown.stdout, name
        assert "settlement " not in shown.stdout, name


async def test_every_id_that_is_printed_of_a_payout_leads_back_to_it(payouts: Payouts) -> None:
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
            idempotency_key="again",
            by="ada",
        )
        tenant = made.tenant.name
    assert asked is not None
    told = payouts.run("explain", one.id, "--tenant", tenant).stdout
    found = set(_ids(told))
    assert {"st", "ap", "tx", "req"} <= {name.split("_")[0] for name in found}, told
    for name in sorted(found):
        shown = payouts.run("explain", name, "--tenant", tenant)
        assert shown.returncode == 0, f"{name}: {shown.stderr}"
        if not name.startswith("tx_"):
            assert f"settlement {one.id}" in shown.stdout, name


async def test_a_digest_of_the_journal_leads_to_its_step(payouts: Payouts) -> None:
    async with shop(payouts.dsn, payouts.control) as made:
        await made.create("a-1")
        digests = await fetchval(
            payouts.dsn, "SELECT string_agg(encode(digest, 'hex'), ' ' ORDER BY number) FROM tally.journal"
        )
        tenant = made.tenant.name
    for digest in digests.split():
        shown = payouts.run("explain", digest, "--tenant", tenant)
        assert shown.returncode == 0, shown.stderr
        assert f"journal {digest}" in shown.stdout


async def test_what_is_not_known_is_called_unknown_and_nothing_is_said_of_money(payouts: Payouts) -> None:
    async with shop(payouts.dsn, payouts.control) as made:
        tenant = made.tenant.name
    shown = payouts.run("explain", "re_nobodys", "--tenant", tenant)
    assert shown.returncode == 1
    assert "I do not know 're_nobodys'" in shown.stderr
    assert "no money" not in shown.stderr
    assert "unused" not in shown.stderr
    for kind in explain_lead.SEARCHED:
        assert kind in shown.stderr
    told = json.loads(payouts.run("explain", "re_nobodys", "--tenant", tenant, "--json").stdout)
    assert told["found"] == []
    assert set(explain_lead.SEARCHED) <= set(told["searched"])


async def test_an_id_of_another_tenant_is_shown_as_theirs(payouts: Payouts) -> None:
    """The command is the operator's, who has the whole database: a wrong tenant must not look like nothing."""
    async with shop(payouts.dsn, payouts.control) as made:
        one = await made.create("a-1")
        await ensure_tenant(made.database, "bystander")
        owner = made.tenant.name
    shown = payouts.run("explain", one.id, "--tenant", "bystander")
    assert shown.returncode == 1
    assert f"--tenant {owner}" in shown.stderr
    assert one.id not in shown.stdout
