"""The books: what a client was told survives a SIGKILL, and no id is issued twice."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import stripe

from tallystick.simulator.books import Books, Entry
from tallystick.simulator.dialect import Endpoint, Switch
from tallystick.simulator.dialects import every_dialect
from tallystick.simulator.process import NotStarted, start
from tallystick.simulator.stripe import balance
from tallystick.simulator.stripe.listing import LISTINGS, many
from tallystick.simulator.stripe.wire import by_itself
from tests.simulator.station import DAY, SECRET, Station, transfer

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def entry(id_: str, *, at: datetime = NOW, **fields: Any) -> Entry:
    values = {"reference": "", "parent": "", "amount": 100, "currency": "usd", "state": "moved", **fields}
    return Entry(
        dialect="stripe", kind=values.pop("kind", "transfer"), id=id_, created_at=at, body={"id": id_}, **values
    )


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path / "books", [Switch("fact", ("a", "b"), "nowhere")])


def test_an_object_comes_back_as_it_was(books: Books) -> None:
    made = entry("tr_1", reference="r", parent="p")
    books.insert(made)
    assert books.get("stripe", "transfer", "tr_1") == made
    assert books.get("stripe", "payout", "tr_1") is None
    assert books.get("wise", "transfer", "tr_1") is None


def test_an_id_is_taken_once(books: Books) -> None:
    books.insert(entry("tr_1"))
    with pytest.raises(sqlite3.IntegrityError):
        books.insert(entry("tr_1"))
    with pytest.raises(KeyError):
        books.replace(entry("tr_2"))


def test_what_is_replaced_before_it_was_written_is_one_object(books: Books) -> None:
    """More of them than wait at once: some are replaced when they were written already."""
    for number in range(1_500):
        books.insert(entry(f"tr_{number}", state="waiting"))
        books.replace(entry(f"tr_{number}", at=NOW + timedelta(days=1), amount=7))
        if number:
            books.replace(entry(f"tr_{number - 1}", amount=8))
    books.commit()
    found = books.find("stripe", "transfer", limit=2_000, newest_first=False)
    assert found == [entry(f"tr_{number}", amount=7 if number == 1_499 else 8) for number in range(1_500)]


@pytest.mark.parametrize("asked", [{"reference": "r"}, {"parent": "p"}, {"reference": "r", "since": NOW}])
def test_a_question_about_one_does_not_go_through_all(
    books: Books, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    """With a hundred thousand transfers a lookup would take longer than anybody waits for its answer."""
    plans: list[str] = []
    execute = books.execute

    def explained(sql: str, values: Any = ()) -> sqlite3.Cursor:
        plans.extend(row[-1] for row in execute(f"EXPLAIN QUERY PLAN {sql}", values))
        return execute(sql, values)

    monkeypatch.setattr(books, "execute", explained)
    books.find("stripe", "transfer", **asked)
    assert any("entry_reference" in plan or "entry_parent" in plan for plan in plans), plans


def test_lists_have_both_directions_cursors_and_bounds(books: Books) -> None:
    for number in range(6):
        at = NOW + timedelta(seconds=number // 2)
        books.insert(entry(f"tr_{number}", at=at, reference=f"r{number % 2}", parent="p" if number < 3 else ""))

    def ids(**asked: Any) -> list[str]:
        return [found.id.removeprefix("tr_") for found in books.find("stripe", "transfer", **asked)]

    assert ids() == ["5", "4", "3", "2", "1", "0"]
    assert ids(newest_first=False, limit=2, offset=1) == ["1", "2"]
    assert ids(after="tr_3") == ["2", "1", "0"]
    assert ids(after="tr_3", newest_first=False) == ["4", "5"]
    assert ids(before="tr_3") == ["5", "4"]
    assert ids(reference="r0") == ["4", "2", "0"]
    assert ids(parent="p") == ["2", "1", "0"]
    assert ids(reference="r1", parent="p") == ["1"]
    assert ids(since=NOW + timedelta(seconds=1), until=NOW + timedelta(seconds=1)) == ["3", "2"]
    with pytest.raises(KeyError):
        ids(after="tr_nothing")


def test_several_kinds_are_one_list(books: Books) -> None:
    for number, kind in enumerate(("transfer", "payout", "quote", "transfer")):
        books.insert(entry(f"{kind}_{number}", kind=kind, at=NOW + timedelta(seconds=number)))
    found = books.find("stripe", ("transfer", "payout"), after="transfer_3")
    assert [each.id for each in found] == ["payout_1", "transfer_0"]


def test_what_raises_is_undone_alone(books: Books) -> None:
    books.insert(entry("tr_1"))
    books.set_balance("stripe", "usd", 5)
    with pytest.raises(RuntimeError), books.alone():
        books.insert(entry("tr_2"))
        books.set_balance("stripe", "usd", 6)
        books.set_endpoint("stripe", Endpoint("http://x", ("s",)))
        books.set_switch("fact", "b")
        raise RuntimeError
    books.commit()
    assert [each.id for each in books.find("stripe", "transfer")] == ["tr_1"]
    assert books.balance("stripe", "usd") == 5
    assert books.endpoint("stripe") is None
    assert books.switch("fact") == "a"


@pytest.mark.parametrize("with_savepoint", [True, False], ids=["savepoint", "one statement"])
async def test_a_full_disk_undoes_the_neighbours_and_they_are_told(books: Books, *, with_savepoint: bool) -> None:
    """SQLite then ends the whole transaction: who heard of a commit would have been told of what is not there."""
    books.execute("CREATE TABLE filler (bytes BLOB)")
    books.commit()
    (pages,) = books.execute("PRAGMA page_count").fetchone()
    books.execute(f"PRAGMA max_page_count = {pages + 2}")
    books.commit()
    books.insert(entry("tr_1"))
    neighbour = books.committed()
    filling = "INSERT INTO filler (bytes) VALUES (zeroblob(?))", (1_000_000,)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        if with_savepoint:
            with books.alone():
                books.execute(*filling)
        else:
            books.execute_alone(*filling)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        await neighbour
    assert books.find("stripe", "transfer") == []


def test_ids_are_unique_also_after_a_rollback_and_a_restart(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(3):
        books = Books(tmp_path / "books")
        told += [books.next_id("x_") for _ in range(10)]
        books.commit()
        with pytest.raises(RuntimeError), books.alone():
            books.next_id("y_")
            raise RuntimeError
        told += [books.next_id("x_") for _ in range(10)]
        books.close()
    assert len(set(told)) == len(told)


def test_a_switch_has_only_its_values(books: Books) -> None:
    with pytest.raises(ValueError, match="a, b"):
        books.set_switch("fact", "c")
    with pytest.raises(KeyError):
        books.switch("fiction")


def test_two_simulators_never_share_a_file(tmp_path: Path) -> None:
    running = start(tmp_path / "books")
    try:
        with pytest.raises(NotStarted):
            start(tmp_path / "books", log=tmp_path / "log")
        assert (
            f"another simulator has the books {tmp_path / 'books'} at {running.url}" in (tmp_path / "log").read_text()
        )
    finally:
        assert running.stop() == 0


def test_everything_told_survives_a_sigkill(tmp_path: Path) -> None:
    running = start(tmp_path / "books")
    station = Station(running)
    client = station.stripe()
    station.advance(3 * DAY)
    station.switch("stripe.key_namespace", "account")
    station.call("PUT", "endpoints/stripe", {"url": "http://127.0.0.1:9/", "secrets": [SECRET]})
    station.call("PUT", "balances/stripe", {"usd": 1000})
    made = transfer(client, "k1")
    payout = client.payouts.create({"amount": 100, "currency": "usd"})
    running.kill()

    running = start(tmp_path / "books")
    station = Station(running)
    try:
        client = station.stripe()
        assert client.transfers.retrieve(made.id).transfer_group == "payout-1"
        assert transfer(client, "k1").last_response.headers["idempotent-replayed"] == "true"
        assert [event.type for event in client.events.list().data] == ["payout.created", "transfer.created"]
        assert station.call("GET", "clock")["offset_seconds"] >= 3 * DAY
        assert client.balance.retrieve().available[0].amount == 800
        switches = {row["name"]: row["value"] for row in station.call("GET", "switches")}
        assert switches["stripe.key_namespace"] == "account"
        assert station.call("GET", "endpoints")["stripe"] == "http://127.0.0.1:9/"
        assert [row["event_id"] for row in station.deliveries()]
        assert transfer(client).id > made.id
        station.advance(DAY + 1)
        assert client.payouts.retrieve(payout.id).status == "paid"
    finally:
        running.stop()


def test_under_load_a_sigkill_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """Group commit must not answer before it commits."""
    running = start(tmp_path / "books")
    station = Station(running)
    told: list[str] = []
    begun = threading.Barrier(5)

    def send(lane: int) -> None:
        client = station.stripe(timeout=5)
        begun.wait()
        for number in range(100_000):
            try:
                told.append(transfer(client, f"k-{lane}-{number}").id)
            except stripe.APIConnectionError:
                return

    lanes = [threading.Thread(target=send, args=(lane,)) for lane in range(4)]
    for lane in lanes:
        lane.start()
    begun.wait()
    while len(told) < 200:
        threading.Event().wait(0.01)
    running.kill()
    for lane in lanes:
        lane.join()

    running = start(tmp_path / "books")
    try:
        kept = {row["id"] for row in Station(running).call("GET", "movements?limit=10000")}
        assert set(told) <= kept
        assert len(kept) - len(told) <= 4
    finally:
        running.stop()


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """A killed `tally up` must not leave a simulator behind that holds the port."""
    script = (
        "import os, sys; from pathlib import Path; from tallystick.simulator.process import start;"
        "print(start(Path(sys.argv[1])).pid, flush=True); os.kill(os.getpid(), 9)"
    )
    starter = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "books.sqlite")], capture_output=True, text=True, check=False
    )
    assert starter.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    with contextlib.suppress(psutil.NoSuchProcess):
        # Nobody may be there to reap it: then it stays as a zombie, which holds nothing.
        while psutil.Process(int(starter.stdout)).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "it goes on alone"
            time.sleep(0.01)


def test_only_their_owner_reads_the_books(tmp_path: Path) -> None:
    """Secrets that sign webhooks are in them."""
    path = tmp_path / "books"
    path.touch(mode=0o644)
    books = Books(path)
    books.set_endpoint("stripe", Endpoint("http://x/", (SECRET,)))
    books.commit()
    assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {
        "books": 0o600,
        "books-wal": 0o600,
    }
    books.close()


def test_a_number_is_not_given_again_after_a_reset(books: Books) -> None:
    books.insert(entry("tr_1"))
    [first] = books.movements()
    books.reset()
    books.insert(entry("tr_2"))
    assert [row["id"] for row in books.movements(after=first["number"])] == ["tr_2"]


def test_a_call_that_is_kept_for_later_is_kept_without_its_key(tmp_path: Path) -> None:
    running = start(tmp_path / "books")
    try:
        station = Station(running)
        station.plan("stripe.transfer:error_500_object_later")
        with pytest.raises(stripe.APIError):
            transfer(station.stripe("sk_test_hidden"), "key-1")
        assert not any(b"sk_test_hidden" in file.read_bytes() for file in tmp_path.iterdir())
        station.advance(DAY)
        assert len(station.movements("transfer")) == 1
    finally:
        running.stop()


def test_a_few_balance_transactions_are_found_among_many_transfers(tmp_path: Path) -> None:
    """Reading through all of them took a second for each page."""
    books = Books(tmp_path / "books", [switch for dialect in every_dialect() for switch in dialect.switches])
    who = by_itself({})
    for number in range(3000):
        id_, at = f"tr_{number}", NOW + timedelta(seconds=number)
        made = entry(id_, at=at)
        body = {"id": id_, "balance_transaction": f"txn_{number}", "created": int(at.timestamp())}
        books.insert(msgspec.structs.replace(made, body=body))
    balance.move(books, NOW, type="refund", source="re_1", amount=-5, currency="usd", context=who)
    read: list[int] = []
    listing = LISTINGS["/v1/balance_transactions"]

    def render(each: Entry) -> dict[str, Any]:
        read.append(1)
        return balance.transaction(each)

    counting = msgspec.structs.replace(listing, render=render)
    for given, source in (({"source": "tr_7"}, "tr_7"), ({"source": "re_1"}, "re_1"), ({"type": "refund"}, "re_1")):
        read.clear()
        reply = many(books, NOW, listing=counting, given=given, context=who)
        assert [row["source"] for row in msgspec.json.decode(reply.body)["data"]] == [source]
        assert len(read) < 10
    books.close()
