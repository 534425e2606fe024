"""The webhook receiver over HTTP: what is believed is durable before it is acknowledged; the rest leaves nothing."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tallystick import app
from tallystick.settings import LIMITS, Limits, Settings
from tallystick.webhooks.receiver import PREFIX, WebhookReceiver
from tests import servers
from tests.deliveries import SECRET, TRUSTED, body, delivery, headers, payment, request, signature, stored
from tests.http import site as sites
from tests.ledgers import broken, fetchval

HOOK = "/webhooks/simulator"
RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "webhook.yml"


@dataclass(frozen=True)
class Hooks:
    site: sites.Site
    dsn: str
    client: httpx2.Client

    def post(self, raw: bytes, path: str = HOOK, **how: Any) -> httpx2.Response:
        return self.client.post(path, content=raw, headers=headers(raw, **how))


@pytest.fixture(scope="module")
def served(embedded18: servers.Server) -> Iterator[tuple[sites.Site, str]]:
    dsn = embedded18.fresh_database()
    with sites.running(dsn) as running:
        yield running, dsn


@pytest.fixture
def hooks(served: tuple[sites.Site, str]) -> Iterator[Hooks]:
    site, dsn = served
    with httpx2.Client(base_url=f"http://127.0.0.1:{site.port}", timeout=sites.PATIENCE_SECONDS) as client:
        yield Hooks(site, dsn, client)


async def test_what_is_acknowledged_is_stored_with_what_it_says(hooks: Hooks) -> None:
    raw = body(1)
    answer = hooks.post(raw)
    assert (answer.status_code, answer.content) == (200, b"")
    row = await fetchval(
        hooks.dsn,
        "SELECT row(e.provider, e.type, e.purpose, e.provider_id, e.reference, e.amount_micros, e.currency, e.state,"
        " e.word, e.status, e.claim_number, e.tries, b.body) FROM tally.webhook_events e"
        " JOIN tally.webhook_body b USING (received_at, number) WHERE event_id = 'evt_1'",
    )
    assert tuple(row) == (
        "simulator",
        "payment_intent.succeeded",
        "charge",
        "pi_1",
        f"{1:064x}",
        10_010_000,
        "EUR",
        "moved",
        "succeeded",
        "UNPROCESSED",
        0,
        0,
        raw,
    )
    assert await broken(hooks.dsn) == {}


async def test_an_event_told_again_is_acknowledged_and_stored_once(hooks: Hooks) -> None:
    """Also with other bytes and another signature: the provider's event id is what counts."""
    answers = [hooks.post(body(2, pending_webhooks=turn)) for turn in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert await fetchval(hooks.dsn, "SELECT count(*) FROM tally.webhook_events WHERE event_id = 'evt_2'") == 1
    assert (
        await fetchval(
            hooks.dsn,
            "SELECT count(*) FROM tally.webhook_body b JOIN tally.webhook_events e"
            " USING (number) WHERE event_id = 'evt_2'",
        )
        == 1
    )
    counted = hooks.client.get("/metrics").text
    assert re.search(r'tally_webhook_repeated_total\{provider="simulator"\} [2-9]', counted)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "forged": ({"secret": "whsec_other"}, "webhook_forged"),
    "stale": ({"age_seconds": 3_600}, "webhook_stale"),
    "from the future": ({"age_seconds": -3_600}, "webhook_stale"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_not_believed_leaves_nothing(hooks: Hooks, name: str) -> None:
    how, code = REFUSED[name]
    raw = body(1_000)
    answer = hooks.post(raw, **how)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == code
    for secret in (SECRET, "whsec_other", signature(raw, **how).split("v1=")[1], "evt_1000", "pi_1000"):
        assert secret not in answer.text
    assert "evt_1000" not in await stored(hooks.dsn)


async def test_one_flipped_byte_forges_it(hooks: Hooks) -> None:
    raw = body(1_001)
    answer = hooks.client.post(HOOK, content=raw.replace(b"2001", b"9001"), headers=headers(raw))
    assert answer.json()["code"] == "webhook_forged"
    assert "evt_1001" not in await stored(hooks.dsn)


async def test_without_a_signature_nothing_is_believed(hooks: Hooks) -> None:
    assert hooks.client.post(HOOK, content=body(1_002)).status_code == 400
    assert "evt_1002" not in await stored(hooks.dsn)


UNREADABLE = {
    "no JSON": b"<xml/>",
    "cut off": body(1_003)[:-2],
    "no event": b"[1, 2]",
    "an object of ours that is none": body(1_003, thing=payment(1_003, amount="12")),
    "empty": b"",
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_what_cannot_be_read_is_refused_though_it_was_signed(hooks: Hooks, name: str) -> None:
    answer = hooks.post(UNREADABLE[name])
    assert (answer.status_code, answer.json()["code"]) == (400, "webhook_unreadable")
    assert "evt_1003" not in await stored(hooks.dsn)


async def test_an_unknown_type_is_stored_and_acknowledged(hooks: Hooks) -> None:
    """It may be one of tomorrow's: told otherwise the provider would send it again for days, and then give up."""
    assert hooks.post(body(3, type="radar.something.new", thing={"id": "x", "object": "radar"})).status_code == 200
    # It tells of no money that anybody here could do something about.
    assert (await stored(hooks.dsn))["evt_3"] == "PROCESSED_OK"
    assert await fetchval(hooks.dsn, "SELECT purpose FROM tally.webhook_events WHERE event_id = 'evt_3'") is None


async def test_a_type_too_long_for_a_label_is_cut_and_its_body_is_whole(hooks: Hooks) -> None:
    raw = body(4, type="x" * 5_000, thing={"id": "x", "object": "radar"})
    assert hooks.post(raw).status_code == 200
    assert await fetchval(hooks.dsn, "SELECT length(type) FROM tally.webhook_events WHERE event_id = 'evt_4'") == 200
    whole = "SELECT body FROM tally.webhook_body JOIN tally.webhook_events USING (number) WHERE event_id = 'evt_4'"
    assert await fetchval(hooks.dsn, whole) == raw


async def test_a_provider_that_is_not_configured_is_not_found(hooks: Hooks) -> None:
    for path in ("/webhooks/adyen", "/webhooks/", "/webhooks/simulator/", "/webhooks/simulator/x"):
        answer = hooks.post(body(1_004), path)
        assert (answer.status_code, answer.json()["code"]) == (404, "webhook_provider_unknown"), path


async def test_only_post_is_answered(hooks: Hooks) -> None:
    answer = hooks.client.get(HOOK)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_a_declared_body_that_is_too_large_is_refused_unread(hooks: Hooks) -> None:
    """Nothing of the body is ever sent: who waited for it would hang here."""
    head = f"POST {HOOK} HTTP/1.1\nHost: x\nStripe-Signature: t=1,v1=0\nContent-Length: {LIMITS.webhook_body_bytes + 1}"
    status, answer = hooks.site.raw(head)
    assert status == 413
    assert b"connection: close" in answer.lower()
    assert b"webhook_too_large" in answer


async def test_a_body_in_chunks_is_cut_off_at_the_limit(hooks: Hooks) -> None:
    """It never said how long it is; a gigabyte of it would be read by a receiver that waits for the end."""
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", hooks.site.port), 30) as connection:
        connection.sendall(f"POST {HOOK} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        sent = 0
        answer = b""
        try:
            for _ in range(16_384):
                connection.sendall(chunk)
                sent += len(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        with suppress(ConnectionResetError):
            answer = connection.recv(65_536)
    assert sent < 64 * LIMITS.webhook_body_bytes
    assert not answer or b" 413 " in answer


async def test_the_largest_body_there_may_be_is_stored(hooks: Hooks) -> None:
    padding = LIMITS.webhook_body_bytes - len(body(5, pad=""))
    raw = body(5, pad="x" * padding)
    assert len(raw) == LIMITS.webhook_body_bytes
    assert hooks.post(raw).status_code == 200
    assert (await stored(hooks.dsn))["evt_5"] == "UNPROCESSED"


async def test_many_at_once_with_repetitions_are_each_there_once(hooks: Hooks) -> None:
    """Two connections tell the same in opposite orders: batches that locked in the order of arrival would deadlock."""
    there, back = list(range(2_000, 2_300)), list(range(2_299, 1_999, -1))

    async def tell(numbers: list[int]) -> list[int]:
        async def one(number: int) -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", hooks.site.port)
            writer.write(request(number))
            status = int((await reader.readline()).split()[1])
            writer.close()
            return status

        return await asyncio.gather(*(one(number) for number in numbers))

    answers = await asyncio.gather(tell(there), tell(back), tell(there))
    assert {status for each in answers for status in each} == {200}
    found = await stored(hooks.dsn)
    assert {f"evt_{number}" for number in there} <= found.keys()
    assert await broken(hooks.dsn) == {}


async def test_the_figures_are_shown(hooks: Hooks) -> None:
    hooks.post(body(1_005), secret="whsec_other")
    shown = hooks.client.get("/metrics").text
    assert re.search(r'tally_webhook_stored_total\{provider="simulator"\} \d', shown)
    assert re.search(r'tally_webhook_refused_total\{provider="simulator",reason="signature_wrong"\} \d', shown)
    for name in ("oldest_unprocessed_seconds", "unprocessed", "dead_letters", "figures_current"):
        assert re.search(rf"^tally_webhook_{name} \d", shown, re.MULTILINE), name


async def test_every_alert_looks_at_figures_that_are_shown(hooks: Hooks) -> None:
    """A rule on a misspelled figure, or on a reason that no receiver gives, is quiet for ever."""
    hooks.post(body(1_006), secret="whsec_other")
    shown = set(re.findall(r"^(tally_webhook_\w+)", hooks.client.get("/metrics").text, re.MULTILINE))
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = {rule["alert"]: rule for rule in group["rules"]}
    assert rules.keys() == {
        "WebhookEventsOld",
        "WebhookDeadLetters",
        "WebhooksNotStored",
        "WebhooksForged",
        "WebhookBodiesWithoutADay",
        "WebhookFiguresOld",
        "WebhookLogLag",
        "WebhookLogStuck",
        "WebhookPoison",
        "WebhookLogUnread",
    }
    for name, rule in rules.items():
        looked_at = set(re.findall(r"\btally_\w+", rule["expr"]))
        assert looked_at, name
        assert looked_at <= shown, name
        assert rule["expr"].count("(") == rule["expr"].count(")"), name
        assert rule["annotations"].keys() == {"summary", "money", "remedy"}, name
        reasons = re.findall(r'reason[!=]~"([a-z_|]+)"', rule["expr"])
        assert set("|".join(reasons).split("|")) <= {
            "",
            "busy",
            "database_unreachable",
            "log_unreachable",
            "internal_error",
        }


@asynccontextmanager
async def receiving(dsn: str, limits: Limits = LIMITS) -> AsyncIterator[tuple[WebhookReceiver, app.Service]]:
    async with app.running(Settings(database_url=dsn, simulator_webhook_secret=TRUSTED), limits=limits) as service:
        yield WebhookReceiver(service, limits=limits), service


async def ask(receiver: WebhookReceiver, raw: bytes, **how: Any) -> tuple[int, dict[str, str], Any]:
    """The application itself, without a server."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"{PREFIX}simulator",
        "headers": [
            (b"stripe-signature", signature(raw, **how).encode()),
            (b"content-length", str(len(raw)).encode()),
        ],
    }
    await receiver(scope, receive, send)
    answer = sent[1]["body"]
    return (
        sent[0]["status"],
        {name.decode(): value.decode() for name, value in sent[0]["headers"]},
        json.loads(answer) if answer else None,
    )


async def test_past_what_may_be_held_the_provider_is_told_to_come_back(embedded18: servers.Server) -> None:
    """Nothing is read into a memory that has no room, and what was held is given back."""
    raw = body(1, pad="x" * 900)
    limits = replace(LIMITS, webhook_bytes=len(raw) + 10)
    async with receiving(embedded18.fresh_database(), limits) as (receiver, _service):
        answers = await asyncio.gather(*(ask(receiver, raw) for _ in range(5)))
        assert sorted(status for status, _, _ in answers) == [200, 503, 503, 503, 503]
        _, told, problem = next(answer for answer in answers if answer[0] == 503)
        assert told["retry-after"] == "1"
        assert problem["code"] == "webhook_not_stored"
        assert receiver.refused["simulator", "busy"] == 4
        assert (await ask(receiver, raw))[0] == 200
        assert receiver._bytes == 0


async def test_a_full_queue_is_told_and_costs_nobody_else(embedded18: servers.Server) -> None:
    limits = replace(LIMITS, queue=3, queue_per_source=3, batch=1, lanes=1)
    dsn = embedded18.fresh_database()
    async with receiving(dsn, limits) as (receiver, _service):
        answers = await asyncio.gather(*(ask(receiver, body(number)) for number in range(20)))
        taken = [number for number, (status, _, _) in enumerate(answers) if status == 200]
        assert 0 < len(taken) < 20
        assert {status for status, _, _ in answers} == {200, 503}
        assert set(await stored(dsn)) == {f"evt_{number}" for number in taken}
        again = await asyncio.gather(*(ask(receiver, body(number)) for number in range(3)))
        assert [status for status, _, _ in again] == [200, 200, 200]


async def test_a_full_disk_is_told_like_a_database_that_is_away(embedded18: servers.Server) -> None:
    """Nobody's webhook is at fault: one answer for the whole batch, and the provider comes back."""
    dsn = embedded18.fresh_database()
    limits = replace(LIMITS, outage_seconds=0.05, outage_first_pause_seconds=0.01)
    async with receiving(dsn, limits) as (receiver, _service):
        await fetchval(
            dsn,
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$",
        )
        await fetchval(
            dsn,
            "CREATE TRIGGER aa_refuse BEFORE INSERT ON tally.webhook_guard "
            "FOR EACH STATEMENT EXECUTE FUNCTION public.refuse()",
        )
        answers = await asyncio.gather(*(ask(receiver, body(number)) for number in range(5)))
        assert {(status, told.get("retry-after") is not None) for status, told, _ in answers} == {(503, True)}
        await fetchval(dsn, "DROP FUNCTION public.refuse CASCADE")
        assert (await ask(receiver, body(1)))[0] == 200
    assert set(await stored(dsn)) == {"evt_1"}


async def test_a_delivery_of_several_events_is_stored_whole(embedded18: servers.Server) -> None:
    """Adyen tells many in one request: half of it acknowledged would be half of it lost."""
    dsn = embedded18.fresh_database()
    async with receiving(dsn) as (_receiver, service):
        assert await service.log.append(delivery(1, 2, 3)) == 3
        assert await service.log.append(delivery(3, 4)) == 1
        assert set(await stored(dsn)) == {"evt_1", "evt_2", "evt_3", "evt_4"}
    assert await broken(dsn) == {}


async def test_two_providers_may_use_the_same_event_id(embedded18: servers.Server) -> None:
    """Dedup by the event's id alone would lose the second provider's."""
    dsn = embedded18.fresh_database()
    async with receiving(dsn) as (_receiver, service):
        assert await service.log.append(delivery(1)) == 1
        assert await service.log.append(delivery(1, provider="stripe")) == 1
    assert await fetchval(dsn, "SELECT count(*) FROM tally.webhook_events WHERE event_id = 'evt_1'") == 2
