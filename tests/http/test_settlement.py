"""Settlements over HTTP: promised once, shown as they stand, and nobody else's."""

import asyncio
import json
from typing import Any

import asyncpg
import httpx2
import pytest

from tests.http.conftest import Payouts
from tests.http.payouts import create, created, status_of, told, wish
from tests.providers.worlds import Control
from tests.settlements import A_WHILE, shop, superuser


def test_a_settlement_is_promised_and_read_back(payer: httpx2.Client, squad: str) -> None:
    made = create(payer, squad)
    assert made.status_code == 201
    assert "idempotent-replayed" not in made.headers
    view = made.json()
    assert (view["status"], view["gross_micros"], view["fee_micros"], view["net_micros"]) == (
        "pending",
        12_340_000,
        0,
        12_340_000,
    )
    assert len(view["idempotency_key"]) == 64
    detail = payer.get(f"/v1/settlements/{view['id']}").json()
    assert {name: detail[name] for name in view} == view
    assert (detail["attempts"], detail["events"], detail["claimed_by"]) == ([], [], None)


def test_what_the_provider_cannot_write_stays_payable(payer: httpx2.Client, squad: str) -> None:
    view = create(payer, squad, gross_micros=12_345_678).json()
    assert (view["net_micros"], view["amount_micros"], view["residue_micros"]) == (12_345_678, 12_340_000, 5_678)
    payable = payer.get(f"/v1/accounts/settlement:payable:EUR:{squad}").json()
    assert payable["balance_micros"] == 12_345_678


async def test_a_replay_is_the_first_answer_to_the_byte_whatever_has_become_of_it(
    payouts: Payouts, payer: httpx2.Client, squad: str, control: Control
) -> None:
    """Bare and quoted are the same key. It is paid between the first and the last of these."""
    first = create(payer, squad, key=f"{squad}-k")
    before = create(payer, squad, key=f'"{squad}-k"')
    async with shop(payouts.dsn, control) as worker:
        await worker.tick()
    assert status_of(payer, first.json()["id"]) == "transferred"
    after = create(payer, squad, key=f"{squad}-k")
    for replay in (before, after):
        assert (replay.status_code, replay.content) == (201, first.content)
        assert replay.headers["idempotent-replayed"] == "true"
    other_key = create(payer, squad, key=f"{squad}-k2")
    assert other_key.status_code == 200
    assert "idempotent-replayed" not in other_key.headers
    assert (other_key.json()["status"], other_key.json()["id"]) == ("transferred", first.json()["id"])
    assert payer.get(f"/v1/accounts/settlement:payable:EUR:{squad}").json()["entries"] == 2


async def test_many_clicks_at_once_make_one_settlement(payouts: Payouts, payer: httpx2.Client, squad: str) -> None:
    """One is told that it is new, and the others the very same, marked as replays."""
    headers = {"authorization": payer.headers["authorization"], "idempotency-key": f"{squad}-clicks"}
    base = f"http://127.0.0.1:{payouts.site.port}"
    async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=60) as clicking:
        answers = await asyncio.gather(
            *(clicking.post("/v1/settlements", json=wish(squad)) for _ in range(40)),
        )
    assert {(answer.status_code, answer.content) for answer in answers} == {(201, answers[0].content)}
    assert sorted("idempotent-replayed" in answer.headers for answer in answers) == [False] + [True] * 39
    assert payer.get(f"/v1/accounts/settlement:payable:EUR:{squad}").json()["entries"] == 1


def test_the_same_attribution_otherwise_is_a_conflict_that_names_both(payer: httpx2.Client, squad: str) -> None:
    first = create(payer, squad).json()
    other = create(payer, squad, key=f"{squad}-other", gross_micros=12_350_000, destination="acct_better")
    problem = other.json()
    assert told(other) == (409, "settlement_conflict")
    assert problem["fields"] == ["destination", "gross_micros"]
    for part in (first["id"], "a-1", "12.34 EUR", "12.35 EUR", "acct_good", "acct_better"):
        assert part in problem["detail"]
    assert payer.get(f"/v1/accounts/settlement:payable:EUR:{squad}").json()["balance_micros"] == 12_340_000


def test_a_key_used_for_another_settlement_names_the_fields(payer: httpx2.Client, squad: str) -> None:
    create(payer, squad, key=f"{squad}-k")
    other = create(payer, squad, "a-2", key=f"{squad}-k", gross_micros=5_000_000)
    assert told(other) == (422, "key_reused")
    assert other.json()["fields"] == ["attribution_id", "gross_micros"]
    # Refused for its key alone: under its own it is a good settlement.
    assert create(payer, squad, "a-2", gross_micros=5_000_000).status_code == 201


def test_without_a_provider_it_is_that_of_the_settings(payer: httpx2.Client, squad: str) -> None:
    made = create(payer, squad, key=f"{squad}-k", provider=None)
    assert (made.status_code, made.json()["provider"]) == (201, "simulator")
    named = create(payer, squad, key=f"{squad}-k")
    assert (named.status_code, named.content) == (201, made.content)


AMOUNTS = {
    "float": ("5.0", "amount_not_integer"),
    "exponent": ("5e6", "amount_not_integer"),
    "text": ('"5000000"', "amount_not_integer"),
    "bool": ("true", "amount_not_integer"),
    "null": ("null", "amount_not_integer"),
    "zero": ("0", "amount_not_positive"),
    "negative": ("-5000000", "amount_not_positive"),
    "beyond BIGINT": ("9223372036854775808", "amount_overflow"),
    "absurd": ("1" + "0" * 5_000, "amount_overflow"),
}


@pytest.mark.parametrize("name", AMOUNTS)
def test_an_amount_is_a_positive_whole_number_of_micros(payer: httpx2.Client, squad: str, name: str) -> None:
    text, code = AMOUNTS[name]
    body = json.dumps(wish(squad, gross_micros=0)).replace('"gross_micros": 0', f'"gross_micros": {text}')
    answer = payer.post(
        "/v1/settlements",
        content=body.encode(),
        headers={"idempotency-key": f"{squad}-{name.replace(' ', '')}", "content-type": "application/json"},
    )
    assert told(answer) == (400, code)
    assert "gross_micros" in answer.json()["detail"]
    assert answer.json()["money"] == "No money moved."


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "a fee of the caller's": ({"fee_micros": 0}, 400, "field_invalid"),
    "a net of the caller's": ({"net_micros": 12_340_000}, 400, "field_invalid"),
    "a state of the caller's": ({"status": "transferred"}, 400, "field_invalid"),
    "a tenant of the caller's": ({"tenant": "other"}, 400, "field_invalid"),
    "no destination": ({"destination": None}, 400, "field_invalid"),
    "empty destination": ({"destination": ""}, 400, "destination_invalid"),
    "destination of another provider": ({"destination": "DE89370400440532013000"}, 400, "destination_invalid"),
    "unprintable destination": ({"destination": "acct_\n"}, 400, "destination_invalid"),
    "endless destination": ({"destination": "acct_" + "g" * 5_000}, 400, "destination_invalid"),
    "destination as a number": ({"destination": 5}, 400, "field_invalid"),
    "empty attribution": ({"attribution_id": ""}, 400, "attribution_invalid"),
    "long attribution": ({"attribution_id": "a" * 201}, 400, "attribution_invalid"),
    "attribution with a space": ({"attribution_id": "a 1"}, 400, "attribution_invalid"),
    "attribution with NUL": ({"attribution_id": "a\0"}, 400, "attribution_invalid"),
    "long squad": ({"squad_id": "s" * 121}, 400, "squad_invalid"),
    "squad that is no part of an account's id": ({"squad_id": "s/1"}, 400, "squad_invalid"),
    "no squad": ({"squad_id": None}, 400, "field_invalid"),
    "unknown currency": ({"currency": "ABC"}, 400, "currency_unknown"),
    "small letters": ({"currency": "eur"}, 400, "currency_unknown"),
    "provider that is off": ({"provider": "wise"}, 409, "provider_not_configured"),
    "no such provider": ({"provider": "strpe"}, 409, "provider_not_configured"),
    "empty provider": ({"provider": ""}, 409, "provider_not_configured"),
    "provider as a number": ({"provider": 5}, 400, "field_invalid"),
    "less than a cent": ({"gross_micros": 9_999}, 409, "net_not_payable"),
    "less than the provider's smallest payout": ({"currency": "JPY", "gross_micros": 999_999}, 409, "net_not_payable"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_leaves_no_trace(payer: httpx2.Client, squad: str, name: str) -> None:
    fields, status, code = BAD[name]
    answer = create(payer, squad, **fields) if None not in fields.values() else _without(payer, squad, [*fields])
    assert told(answer) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["money"], bool(answer.json()["remedy"])) == ("No money moved.", True)
    # The key is unused, and the attribution is free.
    assert create(payer, squad).status_code == 201


def _without(client: httpx2.Client, squad: str, fields: list[str]) -> httpx2.Response:
    body = {name: value for name, value in wish(squad).items() if name not in fields}
    return client.post("/v1/settlements", json=body, headers={"idempotency-key": f"{squad}-a-1"})


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "idempotency_key_missing"),
        ({"idempotency-key": ""}, "idempotency_key_missing"),
        ({"idempotency-key": "a b"}, "idempotency_key_invalid"),
        ({"idempotency-key": '"abc'}, "idempotency_key_invalid"),
        ({"idempotency-key": "k" * 256}, "idempotency_key_too_long"),
    ],
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/settlements", wish("keyless")),
        ("/v1/settlements/st_1/dispute", {"reason": "r", "evidence": "e"}),
        ("/v1/settlements/st_1/resolve", {"resolution": "confirm", "reason": "r", "evidence": "e"}),
        ("/v1/approvals/ap_1", {"decision": "approve", "reason": "r"}),
    ],
)
def test_whatever_moves_or_promises_money_needs_a_key(
    payer: httpx2.Client, path: str, body: dict[str, Any], headers: dict[str, str], code: str
) -> None:
    assert told(payer.post(path, json=body, headers=headers)) == (400, code)


def test_a_floor_of_the_clearing_account_is_kept(payouts: Payouts, squad: str) -> None:
    """A tenant who pays only what came in gives clearing a floor; the refused settlement may be tried again."""
    with payouts.site.client("example") as client:
        assert client.put("/v1/accounts/settlement:clearing:SEK", json={"currency": "SEK"}).status_code == 201
        refused = create(client, squad, currency="SEK")
        assert told(refused) == (402, "insufficient_funds")
        client.put("/v1/accounts/bank:SEK", json={"currency": "SEK", "floor_micros": None})
        topup = {
            "kind": "topup",
            "account": "settlement:clearing:SEK",
            "source": "bank:SEK",
            "amount_micros": 12_340_000,
            "currency": "SEK",
        }
        funded = client.post("/v1/operations", json=topup, headers={"idempotency-key": f"fund-{squad}"})
        assert funded.status_code == 201
        assert create(client, squad, currency="SEK").status_code == 201
        assert client.get("/v1/accounts/settlement:clearing:SEK").json()["balance_micros"] == 0


async def _everything(dsn: str) -> dict[str, list[str]]:
    """All rows of all tables, as text."""
    connection = await asyncpg.connect(superuser(dsn))
    try:
        tables = await connection.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = 'tally'::regnamespace AND relkind = 'r' ORDER BY 1"
        )
        return {
            name: [row[0] for row in await connection.fetch(f"SELECT t::text FROM tally.{name} t ORDER BY 1")]
            for (name,) in tables
        }
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("poor", (402, "insufficient_funds")),
        ("nobody", (404, "account_unknown")),
        ("dollars", (409, "currency_mismatch")),
        ("settlement:payable:EUR:amber", (409, "account_reserved")),
        ("two words", (400, "account_invalid")),
    ],
)
async def test_a_source_that_cannot_pay_is_refused_and_nothing_is_written(
    payouts: Payouts, payer: httpx2.Client, squad: str, source: str, wanted: tuple[int, str]
) -> None:
    """Not even its key: it may be sent again when the source can pay."""
    mine = {name: f"{name}:{squad}" for name in ("outside", "poor", "dollars")}
    for name, currency, floor in (("outside", "EUR", None), ("poor", "EUR", 0), ("dollars", "USD", None)):
        made = payer.put(f"/v1/accounts/{mine[name]}", json={"currency": currency, "floor_micros": floor})
        assert made.status_code == 201, made.text
    topup = {"kind": "topup", "account": mine["poor"], "source": mine["outside"], "currency": "EUR"}

    def fund(micros: int) -> None:
        body = {**topup, "amount_micros": micros}
        done = payer.post("/v1/operations", json=body, headers={"idempotency-key": f"fund-{squad}-{micros}"})
        assert done.status_code == 201, done.text

    fund(12_339_999)
    before = await _everything(payouts.dsn)
    for _ in range(2):
        assert told(create(payer, squad, source=mine.get(source, source))) == wanted
    assert await _everything(payouts.dsn) == before
    fund(1)
    paid = create(payer, squad, source=mine["poor"])
    assert (paid.status_code, paid.json()["source"]) == (201, mine["poor"]), paid.text
    assert payer.get(f"/v1/accounts/{mine['poor']}").json()["balance_micros"] == 0


@pytest.mark.parametrize("name", ["payable:EUR:amber", "in_transit:EUR:simulator", "paid_out:EUR:simulator"])
def test_accounts_of_settlements_are_made_and_moved_by_them_alone(payer: httpx2.Client, squad: str, name: str) -> None:
    account = f"settlement:{name}"
    put = payer.put(f"/v1/accounts/{account}", json={"currency": "EUR", "floor_micros": None})
    assert told(put) == (409, "account_reserved")
    create(payer, "amber", squad)
    payer.put("/v1/accounts/mine", json={"currency": "EUR"})
    theft = {"kind": "transfer", "debit": account, "credit": "mine", "amount_micros": 1, "currency": "EUR"}
    moved = payer.post("/v1/operations", json=theft, headers={"idempotency-key": f"theft-{squad}"})
    assert told(moved) == (409, "account_reserved")
    assert payer.get("/v1/accounts/mine").json()["balance_micros"] == 0


@pytest.mark.parametrize("name", ["settlement:clearing:EUR", "settlement:fees:EUR", "settlement:clearing:"])
def test_clearing_and_fees_hold_the_currency_of_their_name(payer: httpx2.Client, name: str) -> None:
    """Another currency on them would stop every settlement in theirs."""
    assert told(payer.put(f"/v1/accounts/{name}", json={"currency": "USD"})) == (409, "currency_mismatch")


async def test_the_detail_tells_every_attempt_and_question(
    payouts: Payouts, payer: httpx2.Client, squad: str, control: Control
) -> None:
    """The answer to the first send is lost; the books are asked before anything else."""
    async with shop(payouts.dsn, control, by="worker-one") as worker:
        # What other tests left is paid before the fault is planned: it strikes the next transfer.
        await worker.tick()
        control.plan("stripe.transfer:execute_then_drop")
        name = created(payer, squad)
        await worker.tick()
        waiting = payer.get(f"/v1/settlements/{name}").json()
        assert (waiting["status"], waiting["claimed_by"]) == ("processing", "worker-one")
        assert [attempt["answer"] for attempt in waiting["attempts"]] == ["unknown"]
        stuck = payer.get("/v1/settlements", params={"squad_id": squad, "stuck": "true"}).json()
        assert stuck["settlements"] == []
        await worker.pass_time(A_WHILE)
        stuck = payer.get("/v1/settlements", params={"squad_id": squad, "stuck": "true"}).json()
        assert [view["id"] for view in stuck["settlements"]] == [name]
        await worker.tick()
    detail = payer.get(f"/v1/settlements/{name}").json()
    assert detail["status"] == "transferred"
    (attempt,) = detail["attempts"]
    assert (attempt["generation"], attempt["number"], attempt["idempotency_key"]) == (0, 1, detail["idempotency_key"])
    assert attempt["exchanges"][0]["asked"].startswith("POST ")
    (asked,) = (event for event in detail["events"] if event["what"] == "looked_up")
    assert (asked["by"], asked["body"]["found"]) == ("worker-one", "found")
    assert detail["transfer_id"] in asked["body"]["detail"]
    assert asked["body"]["exchanges"][0]["request_id"]
    for status, found in (("transferred", [name]), ("processing", []), ("failed", [])):
        page = payer.get("/v1/settlements", params={"squad_id": squad, "status": status}).json()
        assert [view["id"] for view in page["settlements"]] == found


def test_pages_do_not_shift_while_settlements_arrive(payer: httpx2.Client, squad: str) -> None:
    names = [created(payer, squad, f"a-{number}") for number in range(7)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for round_ in range(3):
        page = payer.get("/v1/settlements", params={"squad_id": squad, "limit": 3, **cursor}).json()
        seen += [view["id"] for view in page["settlements"]]
        created(payer, squad, f"late-{round_}")
        if round_ < 2:
            cursor = {"cursor": page["next"]}
    assert page["next"] is None
    assert seen == names[::-1]
    assert payer.get("/v1/settlements", params={"squad_id": squad, "limit": 10}).json()["next"] is None


@pytest.mark.parametrize(
    "query",
    [
        "status=paid",
        "status=",
        "stuck=1",
        "stuck=",
        "squad_id=",
        "squad_id=%00",
        "cursor=",
        "cursor=0",
        "cursor=x",
        "limit=0",
        "limit=501",
        "colour=red",
        "status=failed&status=failed",
    ],
)
def test_a_wrong_filter_is_refused(payer: httpx2.Client, query: str) -> None:
    """A misspelled one must not silently list everything."""
    assert told(payer.get(f"/v1/settlements?{query}")) == (400, "query_invalid")


@pytest.mark.parametrize("name", ["st_", "st_" + "0" * 32, "st_" + "z" * 32, "ST_" + "0" * 32, "nonsense", "%00"])
def test_an_unknown_settlement_is_not_found(payer: httpx2.Client, name: str) -> None:
    assert told(payer.get(f"/v1/settlements/{name}")) == (404, "settlement_unknown")
    for action, body in (
        ("dispute", {"reason": "r", "evidence": "e"}),
        ("resolve", {"resolution": "retry", "reason": "r", "evidence": "e"}),
    ):
        answer = payer.post(f"/v1/settlements/{name}/{action}", json=body, headers={"idempotency-key": "unknown"})
        assert told(answer) == (404, "settlement_unknown")


async def test_tenants_are_walls(payouts: Payouts, payer: httpx2.Client, squad: str, control: Control) -> None:
    """Same attribution, squad and key, two tenants: two payouts, two provider keys, and neither sees the other."""
    with payouts.site.client("other") as stranger:
        mine, theirs = create(payer, squad).json(), create(stranger, squad).json()
        assert mine["id"] != theirs["id"]
        assert mine["idempotency_key"] != theirs["idempotency_key"]
        async with shop(payouts.dsn, control) as worker:
            await worker.tick()
        for client, own, foreign in ((payer, mine, theirs), (stranger, theirs, mine)):
            assert status_of(client, own["id"]) == "transferred"
            assert told(client.get(f"/v1/settlements/{foreign['id']}")) == (404, "settlement_unknown")
            listed = client.get("/v1/settlements", params={"squad_id": squad}).json()["settlements"]
            assert [view["id"] for view in listed] == [own["id"]]
            doubt = client.post(
                f"/v1/settlements/{foreign['id']}/dispute",
                json={"reason": "It is not mine.", "evidence": "none"},
                headers={"idempotency-key": f"{squad}-steal"},
            )
            assert told(doubt) == (404, "settlement_unknown")
        assert status_of(payer, mine["id"]) == status_of(stranger, theirs["id"]) == "transferred"


@pytest.mark.parametrize(
    ("role", "may_write", "may_approve", "may_change_fees"),
    [
        ("admin", True, True, True),
        ("operator", True, False, False),
        ("approver", False, True, False),
        ("viewer", False, False, False),
        ("auditor", False, False, False),
    ],
)
def test_each_role_may_do_its_own_part(
    payouts: Payouts, squad: str, role: str, *, may_write: bool, may_approve: bool, may_change_fees: bool
) -> None:
    headers = {"idempotency-key": f"{squad}-{role}"}
    unknown = "0" * 32
    with payouts.site.client(role=role) as client:
        writes = [
            create(client, squad),
            client.post("/v1/settlements/batch", json={"settlements": []}),
            client.post(
                f"/v1/settlements/st_{unknown}/dispute", json={"reason": "r", "evidence": "e"}, headers=headers
            ),
            client.post(
                f"/v1/settlements/st_{unknown}/resolve",
                json={"resolution": "confirm", "reason": "r", "evidence": "e"},
                headers=headers,
            ),
        ]
        assert [answer.status_code for answer in writes] == ([201, 200, 404, 404] if may_write else [403] * 4)
        decided = client.post(
            f"/v1/approvals/ap_{unknown}", json={"decision": "approve", "reason": "r"}, headers=headers
        )
        assert decided.status_code == (404 if may_approve else 403)
        fee = client.put("/v1/settlement-policies/ISK", json={"percent_ppm": 1})
        assert fee.status_code == (200 if may_change_fees else 403)
        for path in ("/v1/settlements", "/v1/approvals", "/v1/settlement-policies"):
            assert client.get(path).status_code == 200
