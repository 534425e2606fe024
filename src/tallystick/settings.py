"""Every setting and every limit, each with its unit and its reason.

Settings come from the environment (`TALLY_*`) or from `tally.toml` under the same names in lower case without
the prefix's capitals (`tally_port = 8080`); the environment wins.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Final

from tallystick.errors import Misconfigured
from tallystick.providers.declared import Declared, ProviderSettings
from tallystick.providers.known import KNOWN
from tallystick.secret import HIDDEN, Secret

IpNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of loops, batches, queues, retries and waits. Not settings: chosen by measurement."""

    # Two lanes: while PostgreSQL works on one batch, Python answers the last and gathers the next. A third
    # gained nothing on two cores (docs/benchmarks.md).
    lanes: int = 2
    # Where lanes join: one begins beside another when this many wait, or when that one has worked for this long.
    join_items: int = 100
    join_seconds: float = 0.1
    # Where they are paced: after a batch of so many a small one begins this long after that one began. At 10,000
    # webhooks a second it is a third less processor time, for 5 ms (docs/decisions/0004).
    pace_items: int = 8
    pace_seconds: float = 0.01
    # Past about 1,000 the cost per operation no longer falls, and everybody waits for the whole batch.
    batch: int = 1_000
    # About one second of work at full speed: a longer queue only hides that the caller must slow down.
    queue: int = 20_000
    # One tenant may fill at most this much of it, so that a flood from one leaves room for the others.
    queue_per_source: int = 10_000
    # What a caller is told to wait when the queue is full: the queue is then about half empty.
    retry_after_seconds: float = 1.0
    # How long a lane waits for a lock before it sets the blocked items aside: longer than any batch takes.
    lock_wait_seconds: float = 0.5
    # How long an item that was set aside rests before it is tried again.
    deferral_seconds: float = 0.02
    # How often a batch that others beat to something is run whole before it is divided.
    contended_rounds: int = 3
    # How often the queue is searched for callers who wait too long.
    sweep_seconds: float = 0.5
    # How long a caller is kept in all, blocked by somebody else, before he is told so.
    wait_seconds: float = 10.0
    # How long a batch is tried again while the database is away; then the callers are told.
    outage_seconds: float = 5.0
    # First and longest pause between two tries during an outage.
    outage_first_pause_seconds: float = 0.05
    outage_longest_pause_seconds: float = 1.0
    # A batch takes milliseconds; a statement still running after this is given up by the server.
    statement_seconds: float = 10.0
    # And a transaction after this by us, whatever the server is doing (a COMMIT may wait for an absent standby).
    transaction_seconds: float = 15.0
    # A server that is silent for three times this long is gone, and its connection with it.
    silence_seconds: int = 10
    # A stopped process must not hold locks: the server ends its transaction after this.
    idle_transaction_seconds: float = 10.0
    # A caller's own transaction with submits in it may be this old: an old snapshot stalls relay and sealer.
    caller_transaction_seconds: float = 30.0
    # How long a migration waits for a table's lock: as long as everybody who comes after it waits behind it.
    migration_lock_seconds: float = 1.0
    # How long an index that is made beside writers waits for transactions that began before it. Nobody waits for it.
    migration_index_seconds: float = 60.0
    # How often a step is tried, with the first and the longest pause between: five minutes in all, then a person looks.
    migration_tries: int = 60
    migration_first_pause_seconds: float = 0.5
    migration_longest_pause_seconds: float = 5.0
    # How long a second `tally migrate` waits for the first, and how often it looks.
    migration_wait_seconds: float = 60.0
    migration_look_seconds: float = 0.25
    # Rows of each kind that `tally retain` lets go in one transaction, and how often in one run: a million in all, and
    # the next run goes on.
    retention_chunk: int = 2_000
    retention_rounds: int = 500
    connect_seconds: float = 10.0
    close_seconds: float = 5.0
    # How long shutdown waits for what is queued.
    drain_seconds: float = 30.0
    # Connections for reads, beside those of the lanes.
    readers: int = 8
    # Seconds for each question of `tally explain` that no index answers: a person waits for it, and the server works.
    explain_seconds: float = 10.0
    # Operations in one batch call.
    batch_call: int = 1_000
    # Bytes in a request body: a full batch call of ordinary operations is 0.3 MB.
    body_bytes: int = 4 * 1024 * 1024
    # How often somebody looks for such, and how many of a kind begin anew in one transaction.
    timekeeping_seconds: float = 60.0
    timekeeping_chunk: int = 1_000
    # Rows of one page of a list.
    page: int = 500
    # How long after its commit a provider call may begin to be written; a successor waits this long.
    send_seconds: float = 10.0
    # How often `tally recover` says how long it still waits: it takes minutes, and nothing is sent meanwhile.
    recovery_told_seconds: float = 30.0
    # A worker whose database is away tries again after the first of these, then after twice as long, up to the longest:
    # longer ones would keep work waiting after it is back.
    worker_first_pause_seconds: float = 0.5
    worker_longest_pause_seconds: float = 15.0
    # While the database is distrusted: a person has to act first.
    worker_restored_seconds: float = 30.0
    # Between two looks at whether a provider's books are to be read after what may have been a restore: a restart opens
    # a reading that ends some minutes later, and nothing waits for it but payouts that were created since.
    reading_pause_seconds: float = 10.0
    # Settlements under one claim: a chunk is one transaction, and all of it must be sent within send_seconds.
    settlement_chunk: int = 500
    # Chunks in flight: while the database works on one, another is being sent.
    settlement_lanes: int = 2
    # Stuck ones under one claim: each is a question to the provider.
    settlement_stuck_chunk: int = 200
    # Answers are recorded in groups: this long a group may grow. An answer is lost to a crash no longer than that.
    settlement_linger_seconds: float = 0.05
    # How long pass 1 of a tick may go on before pass 2 has a turn.
    settlement_turn_seconds: float = 5.0
    # How often a worker looks for settlements when there were none.
    settlement_pause_seconds: float = 2.0
    # Reservations swept in one transaction: it holds their SKUs for some tens of milliseconds.
    sweep_chunk: int = 500
    # How often the sweeper looks for overdue reservations when there were none.
    sweep_pause_seconds: float = 2.0
    # How long `tally sweep` waits for webhooks on their way into the database: its next run is a cron's minute off.
    sweep_patience_seconds: float = 10.0
    # How often it looks meanwhile.
    watermark_pause_seconds: float = 0.1
    # Overdue orders whose payments a sweep has cancelled at once: each is a call or two to a provider.
    release_chunk: int = 64
    # How long such an order is left to the one who asks: a permit and the longest waits for two answers are over then.
    release_lease_seconds: float = 90.0
    # When it is looked at again after it was found paid: the saga should have made it PAID long before.
    release_told_seconds: float = 60.0
    # How long after it was held an order that was swept unanswered is still asked about: no outage of a provider that
    # goes on working is longer, and what is told later is given back all the same.
    release_longest_seconds: float = 30 * 86_400.0
    # Cancellations and changes of stock at once: each has a connection, and most wait for the same few SKUs.
    order_steps: int = 4
    # Bytes in a webhook's body. Providers send a few kilobytes; Stripe's own limit for an event is far below this.
    webhook_body_bytes: int = 1024 * 1024
    # Bytes of webhooks that are being read or stored at once: 32,000 of a kilobyte, three times what a queue holds.
    webhook_bytes: int = 32 * 1024 * 1024
    # Workers are woken at most this often by one receiver: each waking is a transaction.
    webhook_notify_seconds: float = 0.1
    # How long a delivery may wait for Kafka's acknowledgement before the provider is told to send it again: below the
    # ten seconds and more that providers wait.
    kafka_append_seconds: float = 5.0
    # How long a small batch of records may grow before it is sent: Kafka's own commit takes as long.
    kafka_linger_seconds: float = 0.002
    # Bytes in one record: the largest body, and what was read from it, which repeats some of it.
    kafka_record_bytes: int = 4 * 1024 * 1024
    # How long a question to Kafka may take.
    kafka_ask_seconds: float = 5.0
    # How long the consumer waits for the first record before it looks whether it should stop.
    kafka_read_seconds: float = 0.5
    # Records stored in one transaction: about as many as a receiver's own batches.
    kafka_batch: int = 1_000
    # Bytes of records read ahead, and so in one transaction.
    kafka_read_bytes: int = 16 * 1024 * 1024
    # A consumer that is silent for this long has its partitions taken over.
    kafka_session_seconds: float = 10.0
    # A transaction that takes longer shows that the database has enough to do: the consumer rests as long as it took.
    kafka_slow_seconds: float = 0.5
    # Partitions of a topic that is made: so many consumers can share it.
    kafka_partitions: int = 12
    # How long the topic keeps records: a database may be away, or a backup's age, no longer than this.
    kafka_retention_seconds: float = 7 * 86_400.0
    # Days for which partitions of bodies are made ahead: a keeper that is down over a long weekend is not noticed.
    webhook_days_ahead: int = 7
    # How often the keeper looks after them.
    webhook_keeping_seconds: float = 3_600.0
    # How often a provider's own list of events is read for webhooks that never came.
    webhook_backfill_seconds: float = 300.0
    # Pages of that list in one run: an outage of a day is caught up with in a few.
    webhook_backfill_pages: int = 100
    # Events under one claim: one UPDATE to take them and one to finish them.
    event_chunk: int = 500
    # Batches at once while events queue up: while the database works on one, Python decides the other.
    event_workers: int = 2
    # How often a worker looks for events when nobody woke it.
    event_pause_seconds: float = 3.0
    # For so long at most the intake rests beside a slow database: its topic grows meanwhile.
    intake_longest_rest_seconds: float = 30.0
    # How long a handler may take over a batch before it is held to hang.
    event_handling_seconds: float = 60.0
    # Failures of an event's own before it is a dead letter; outages are none.
    event_tries: int = 8
    # The pause after the first failure, doubled with each, and the longest.
    event_first_retry_seconds: float = 1.0
    event_longest_retry_seconds: float = 3_600.0
    # When an event is looked at again that an outage kept from being processed.
    event_outage_seconds: float = 5.0
    # How long a buyer is kept waiting for the provider before he is told that his payment is pending.
    payment_wait_seconds: float = 5.0
    # How long a charge is left to the one who sends it: a permit and the longest wait for an answer are over by then.
    payment_lease_seconds: float = 35.0
    # How long after an answer that decided nothing the provider's books are asked.
    payment_stuck_seconds: float = 15.0
    # Sends of one charge without a final answer before it is given up, or a person is called.
    payment_retry_budget: int = 8
    # Attempts to pay one order after refusals: whoever tries more cards than this is not its buyer.
    payment_attempts: int = 10
    # Orders being paid at once in one process: each waits for the provider, for half a minute at most.
    payment_flights: int = 20_000
    # And of one tenant: the others have as many.
    payment_flights_per_tenant: int = 10_000
    # Charges left pending that a collector claims at once: each is a question to the provider.
    payment_chunk: int = 100
    # How often the collector looks for charges that nobody finished, when there were none.
    payment_pause_seconds: float = 2.0
    # Refunds that are being sent at once at one provider, by one process.
    refunds_at_once: int = 64
    # Refunds that a financial sweeper claims at once: all of them must be sent within send_seconds.
    refund_chunk: int = 500
    # How often it looks for refunds that are due, when there were none.
    refund_pause_seconds: float = 2.0
    # How long a batch of events waits for the refunds it has begun, before it lets them finish by themselves.
    saga_wait_seconds: float = 2.0
    # When an event is looked at again that waits for its refund. The refund itself finishes it: this is a backstop.
    saga_look_seconds: float = 600.0
    # Backorders that are filled in one transaction.
    backorder_chunk: int = 200
    # How long somebody may wait for an order to change, in one call: well within a proxy's patience, often 60 s.
    status_wait_seconds: float = 30.0
    # Callers who wait so at once in one process: each is a connection and two tasks, about 20 kB.
    status_waiters: int = 5_000
    # And of one tenant: the others have as many.
    status_waiters_per_tenant: int = 2_500
    # How often the orders somebody waits for are compared with the database, all of them in one statement: what was
    # never announced is noticed after this.
    status_poll_seconds: float = 1.0
    # Changed orders are announced at most this often by one process: each announcement is a transaction.
    status_notify_seconds: float = 0.05
    # Payloads of one announcement, about 200 orders each; of more orders it says that any may have changed.
    status_notify_payloads: int = 32
    # How old an answer from memory may be: as old as what a waiter may not have noticed yet.
    status_age_seconds: float = 1.0
    # Answers kept in memory, about 1 kB each.
    status_kept: int = 10_000
    # How often a process proves that it still hears the database's notifications.
    status_echo_seconds: float = 1.0
    # How long such a proof counts, from before it was begun: one may be late on a busy machine.
    status_trust_seconds: float = 3.0
    # Connections to the API and the webhooks at once in one process, about 10 kB each: payment_flights, and some more.
    connections: int = 25_000
    # Files that a process asks the system for: its connections, as many to providers, and the rest. Services are often
    # given 1,024 and may have far more for the asking.
    descriptors: int = 65_536
    # And how many of them, or an eighth, connections may not take: the database's, the providers', files.
    descriptors_kept: int = 256
    # How long the head of a request may take from its first byte, or from the connection: it fits one packet.
    head_seconds: float = 10.0
    # And the body from there, all of it: 4 MB over a line of a megabit. A byte now and then does not lengthen it.
    body_seconds: float = 30.0
    # How long a connection may be idle between requests: below a load balancer's 60 s it opens another one.
    idle_seconds: int = 5
    # How long a caller may take to read what he was answered, before he is held to be gone.
    reply_seconds: float = 30.0
    # How long the last bytes of a connection that we close may take.
    linger_seconds: float = 2.0
    # How often it is looked for those who are late: a look at 25,000 takes some 3 ms.
    crowd_look_seconds: float = 0.5
    # How often it is said that connections were closed: an attack must not fill the log as well.
    crowd_told_seconds: float = 10.0
    # Bytes of requests that are not whole, in all, but for the bodies of webhooks and of calls that have a key.
    unfinished_bytes: int = 64 * 1024 * 1024
    # Bytes of bodies of calls in work, in all, and of one tenant: sixteen of the largest, and eight.
    call_bytes: int = 64 * 1024 * 1024
    call_bytes_per_tenant: int = 32 * 1024 * 1024
    # A body from so many bytes on waits for its turn among its tenant's: reading it takes the whole process. A batch of
    # 200 operations is as large; 1 MB of JSON takes 5 to 40 ms.
    turn_bytes: int = 64 * 1024
    # Fields in the head of one request: clients and proxies send some twenty.
    head_fields: int = 128
    # How often the figures of /metrics are written anew for whoever asks: so often at once, and then a second. To write
    # them takes 10 ms, and anybody may ask.
    metrics_burst: int = 20
    metrics_per_second: float = 4.0
    # How long an API key's lookup is remembered: a revoked key works at most this much longer.
    key_memory_seconds: float = 1.0
    key_memory: int = 10_000
    # Connections that look up keys, for each of: keys that were known before, new ones, and those without a checksum.
    key_readers: int = 1
    # Keys that wait to be looked up, for each of those: a tenth of a second's work.
    key_queue: int = 100
    # How often it is said of one tenant that it asks too often: whoever does must not fill the log as well.
    rate_told_seconds: float = 10.0
    # Unknown keys that one address may try at once, and how many a second after that: a person with a wrong key, or a
    # deployment with an old one, needs few.
    guesses: int = 20
    guesses_per_second: float = 1.0
    # Addresses whose guesses are counted, about 200 bytes each.
    guessers: int = 20_000
    # Refusals without a key that one address may have a second, and a second's worth at once: a tenth of the process.
    # One counts as more for each so many bytes that had to be read for it. What is above waits, so long at most:
    # providers wait for 5 s and more.
    refusals_per_second: float = 1_000.0
    refusal_bytes: int = 1024
    refusal_seconds: float = 2.0
    # Reads of one tenant at once, of all `readers`: what is left is the others'.
    readers_per_tenant: int = 6
    # And how many of its reads may wait: a second's work of those.
    reads_waiting_per_tenant: int = 500


LIMITS: Final = Limits()


def _port(values: Mapping[str, str], name: str) -> int:
    text = values[name]
    if not (text.isascii() and text.isdigit() and int(text) <= _HIGHEST_PORT):
        raise Misconfigured(f"{name} is {text!r}: it must be a number from 0 to {_HIGHEST_PORT}")
    return int(text)


@dataclass(frozen=True, slots=True)
class _Spec:
    name: str
    default: str | None
    meaning: str
    secret: bool = False


_HIGHEST_PORT = 65535
# A day: nobody would be told of a stuck payout sooner, and nobody holds stock for longer without paying.
_LONGEST_TIMEOUT = 86_400
_HIGHEST_BUDGET = 1_000
# Renewed at a third of it, beside a transaction that may take its whole time.
_SHORTEST_LEASE = 5.0
# A month: providers tell an event again for up to that long, and disputes are looked into later still.
_FEWEST_BODY_DAYS = 30
_MOST_BODY_DAYS = 36_500
# More than one process can send; a larger number is a slip of the finger.
_HIGHEST_RATE = 100_000
# Shorter ones can be guessed, and their prefix would show most of them.
_SHORTEST_API_KEY = 24

# Who else may speak to Kafka is the operator's to say; how it is written to and read is not.
_KAFKA_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.")
# Names that need no quotes in statements that a person writes.
_ROLE_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# What Kafka takes for a topic's name.
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_BROKER = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def _of_provider(of: Declared) -> tuple[_Spec, ...]:
    """What every provider has, and what is its own."""
    prefix, title = f"TALLY_{of.name.upper()}_", of.title
    return (
        _Spec(f"{prefix}API_KEY", None, f"{title}: {of.api_key}; absent: {title} is off", secret=True),
        _Spec(f"{prefix}API_BASE", of.api_base, f"{title}: address of the API"),
        _Spec(
            f"{prefix}WEBHOOK_SECRET",
            None,
            f"{title}: {of.webhook_secret}; several during rotation, by comma",
            secret=True,
        ),
        _Spec(f"{prefix}REQUESTS_PER_SECOND", None, f"{title}: rate limit; absent: what the provider publishes"),
        _Spec(
            f"{prefix}SETTLEMENT_TIMEOUT_SECONDS",
            None,
            f"{title}: a payout without an answer is taken over after this; absent: TALLY_SETTLEMENT_TIMEOUT_SECONDS",
        ),
        *(_Spec(f"{prefix}{own.name}", own.default, f"{title}: {own.meaning}") for own in of.settings),
    )


SPECS: Final = (
    _Spec(
        "TALLY_DATABASE_URL",
        None,
        "PostgreSQL DSN; absent: embedded PostgreSQL under TALLY_HOME",
        secret=True,
    ),
    _Spec(
        "TALLY_DATABASE_DIRECT_URL",
        None,
        "the server's own DSN where TALLY_DATABASE_URL is a pooler's: for LISTEN, migrations and verify",
        secret=True,
    ),
    _Spec(
        "TALLY_SERVICE_ROLE",
        "tallystick_service",
        "PostgreSQL role that `tally migrate` makes for services that do not own their tables; empty: none",
    ),
    _Spec("TALLY_HOME", ".tally", "data of the embedded default"),
    _Spec("TALLY_HOST", "127.0.0.1", "where the API listens"),
    _Spec("TALLY_PORT", "8080", "where the API listens"),
    _Spec("TALLY_API_KEY", None, "a bootstrap admin key for tenant `default`", secret=True),
    _Spec(
        "TALLY_TRUSTED_PROXIES",
        None,
        "addresses or networks of proxies whose X-Forwarded-For is believed, by comma; absent: nobody's",
    ),
    _Spec(
        "TALLY_TENANT_REQUESTS_PER_SECOND",
        "0",
        "calls with a key that one tenant may make in each process, a batch counting as what is in it; 0: no limit",
    ),
    _Spec("TALLY_PROVIDER", "simulator", f"provider for new money movements: simulator, {', '.join(KNOWN)}"),
    _Spec("TALLY_SIMULATOR_PORT", "8090", "where the simulator listens, on 127.0.0.1"),
    _Spec("TALLY_SETTLEMENT_TIMEOUT_SECONDS", "300", "a payout without an answer is stuck, and taken over, after this"),
    _Spec("TALLY_SETTLEMENT_RETRY_BUDGET", "8", "sends without a final answer before a payout is given up"),
    _Spec(
        "TALLY_RESERVATION_TTL_SECONDS", "600", "how long a reservation holds its stock for a buyer who has not paid"
    ),
    _Spec("TALLY_RESERVATION_GRACE_SECONDS", "30", "how much longer the sweeper lets it be"),
    _Spec(
        "TALLY_SWEEP_HOLD_SECONDS",
        "3600",
        "how long a provider out of reach keeps an overdue order from being swept; what is paid later is refunded",
    ),
    _Spec("TALLY_LEASE_SECONDS", "300", "a webhook event whose worker fell silent is taken over after this"),
    _Spec(
        "TALLY_WEBHOOK_BODY_DAYS",
        None,
        "days after which webhooks' bodies are detached, unless a tenant's policy keeps them for longer; absent: never",
    ),
    _Spec(
        "TALLY_KAFKA_BOOTSTRAP",
        None,
        "host:port of Kafka brokers, by comma: webhooks go there first; absent: PostgreSQL",
    ),
    _Spec("TALLY_KAFKA_TOPIC", "tally.webhooks", "the topic of webhooks, one for each database"),
    _Spec(
        "TALLY_KAFKA_SECURITY",
        None,
        "security.*, sasl.* and ssl.* of the Kafka client as name=value, by semicolon",
        secret=True,
    ),
    *(spec for of in KNOWN.values() for spec in _of_provider(of)),
)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where webhooks are appended first. `security` is the client's own, by its own names."""

    bootstrap: str
    topic: str = "tally.webhooks"
    security: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective settings. `origins` tells where each came from, `shown` what a person may see of each."""

    database_url: str | None = field(default=None, repr=False)
    # None: database_url is the server's own.
    database_direct_url: str | None = field(default=None, repr=False)
    # None: `tally migrate` makes no role for services.
    service_role: str | None = "tallystick_service"
    home: Path = Path(".tally")
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = field(default=None, repr=False)
    # Whose X-Forwarded-For is believed.
    trusted_proxies: tuple[IpNetwork, ...] = ()
    # None: as often as a tenant likes. No default fits all: most installations have one tenant, which may have all
    # there is, and the shares of what is held at once (Limits) already leave room for the others.
    tenant_requests_per_second: float | None = None
    provider: str = "simulator"
    simulator_port: int = 8090
    # What signs the simulator's webhooks: made for each TALLY_HOME. None: none of them is believed.
    simulator_webhook_secret: Secret | None = None
    settlement_timeout_seconds: float = 300.0
    settlement_retry_budget: int = 8
    reservation_ttl_seconds: float = 600.0
    reservation_grace_seconds: float = 30.0
    sweep_hold_seconds: float = 3600.0
    lease_seconds: float = 300.0
    # None: kept for good.
    webhook_body_days: int | None = None
    # None: webhooks go straight to the database.
    kafka: KafkaSettings | None = None
    # Those whose API key is set.
    providers: Mapping[str, ProviderSettings] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    shown: Mapping[str, str | None] = field(default_factory=dict)


def load(environment: Mapping[str, str] | None = None, directory: Path | None = None) -> Settings:
    """Read, check and merge. An unknown or malformed setting stops the start, by name."""
    environment = os.environ if environment is None else environment
    path = (directory or Path()) / "tally.toml"
    values: dict[str, str] = {spec.name: spec.default for spec in SPECS if spec.default is not None}
    origins = dict.fromkeys((spec.name for spec in SPECS), "default")
    known = set(origins)
    for name, value in _from_file(path).items():
        _require_known(name, known, str(path))
        values[name], origins[name] = value, path.name
    for name, value in environment.items():
        if name.startswith("TALLY_") and not name.startswith("TALLY_TEST_"):
            _require_known(name, known, "the environment")
            values[name], origins[name] = value, "environment"
    for name in ("TALLY_HOST", "TALLY_HOME"):
        if not values[name]:
            message = f"{name} is empty"
            raise Misconfigured(message)
    if 0 < len(values.get("TALLY_API_KEY", "")) < _SHORTEST_API_KEY:
        message = f"TALLY_API_KEY is too short: use at least {_SHORTEST_API_KEY} random characters"
        raise Misconfigured(message)
    return Settings(
        database_url=values.get("TALLY_DATABASE_URL") or None,
        database_direct_url=_direct(values),
        service_role=_role(values, "TALLY_SERVICE_ROLE"),
        home=Path(values["TALLY_HOME"]),
        host=values["TALLY_HOST"],
        port=_port(values, "TALLY_PORT"),
        api_key=values.get("TALLY_API_KEY") or None,
        trusted_proxies=_networks(values, "TALLY_TRUSTED_PROXIES"),
        tenant_requests_per_second=_rate_or_none(values, "TALLY_TENANT_REQUESTS_PER_SECOND"),
        provider=_provider(values),
        simulator_port=_port(values, "TALLY_SIMULATOR_PORT"),
        settlement_timeout_seconds=_seconds(values, "TALLY_SETTLEMENT_TIMEOUT_SECONDS"),
        settlement_retry_budget=_budget(values, "TALLY_SETTLEMENT_RETRY_BUDGET"),
        reservation_ttl_seconds=_seconds(values, "TALLY_RESERVATION_TTL_SECONDS"),
        reservation_grace_seconds=_seconds(values, "TALLY_RESERVATION_GRACE_SECONDS", least=0.0),
        sweep_hold_seconds=_seconds(values, "TALLY_SWEEP_HOLD_SECONDS", least=0.0),
        lease_seconds=_lease(values, "TALLY_LEASE_SECONDS"),
        webhook_body_days=_days(values, "TALLY_WEBHOOK_BODY_DAYS"),
        kafka=_kafka(values),
        providers={name: _account(name, values) for name in KNOWN if values.get(f"TALLY_{name.upper()}_API_KEY")},
        origins=origins,
        shown={spec.name: _shown(spec, values.get(spec.name)) for spec in SPECS},
    )


def _seconds(values: Mapping[str, str], name: str, *, least: float = 0.001) -> float:
    try:
        seconds = float(values[name])
    except ValueError:
        seconds = -1.0
    if not least <= seconds <= _LONGEST_TIMEOUT:
        raise Misconfigured(f"{name} is {values[name]!r}: it must be a number of seconds, at most {_LONGEST_TIMEOUT}")
    return seconds


def _direct(values: Mapping[str, str]) -> str | None:
    direct = values.get("TALLY_DATABASE_DIRECT_URL") or None
    if direct is not None and not values.get("TALLY_DATABASE_URL"):
        raise Misconfigured("TALLY_DATABASE_DIRECT_URL is set, and TALLY_DATABASE_URL, the pooler's, is not")
    return direct


def _role(values: Mapping[str, str], name: str) -> str | None:
    text = values[name]
    if text and not _ROLE_NAME.fullmatch(text):
        raise Misconfigured(f"{name} is {text!r}: lower-case letters, digits and underline, at most 63")
    return text or None


def _networks(values: Mapping[str, str], name: str) -> tuple[IpNetwork, ...]:
    found = []
    for part in filter(None, values.get(name, "").replace(" ", "").split(",")):
        try:
            found.append(ip_network(part))
        except ValueError as error:
            raise Misconfigured(f"{name}: {part!r} is no address and no network: {error}") from error
    return tuple(found)


def _budget(values: Mapping[str, str], name: str) -> int:
    text = values[name]
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _HIGHEST_BUDGET):
        raise Misconfigured(f"{name} is {text!r}: it must be a whole number from 1 to {_HIGHEST_BUDGET}")
    return int(text)


def _lease(values: Mapping[str, str], name: str) -> float:
    seconds = _seconds(values, name)
    if seconds < _SHORTEST_LEASE:
        raise Misconfigured(f"{name} is {values[name]!r}: below {_SHORTEST_LEASE:g} s a busy worker could not renew it")
    return seconds


def _days(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and _FEWEST_BODY_DAYS <= int(text) <= _MOST_BODY_DAYS):
        raise Misconfigured(
            f"{name} is {text!r}: it must be a whole number of days from {_FEWEST_BODY_DAYS} to {_MOST_BODY_DAYS:,}"
        )
    return int(text)


def _kafka(values: Mapping[str, str]) -> KafkaSettings | None:
    bootstrap = values.get("TALLY_KAFKA_BOOTSTRAP", "").replace(" ", "")
    topic = values["TALLY_KAFKA_TOPIC"]
    if not _TOPIC_NAME.fullmatch(topic):
        raise Misconfigured(f"TALLY_KAFKA_TOPIC is {topic!r}: letters, digits, dot, line and underline, at most 200")
    if not bootstrap:
        return None
    for broker in bootstrap.split(","):
        found = _BROKER.fullmatch(broker)
        if found is None or not 1 <= int(found[2]) <= _HIGHEST_PORT:
            raise Misconfigured(f"TALLY_KAFKA_BOOTSTRAP: {broker!r} is no host:port; several are separated by comma")
    security: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in values.get("TALLY_KAFKA_SECURITY", "").split(";"))):
        name, _, value = part.partition("=")
        # The value may be a password: only the name is ever shown.
        if not value or not name.startswith(_KAFKA_SECURITY):
            raise Misconfigured(f"TALLY_KAFKA_SECURITY: {name[:60]!r} is no security.*, sasl.* or ssl.* with a value")
        security[name] = value
    return KafkaSettings(bootstrap, topic, security)


def _shown(spec: _Spec, value: str | None) -> str | None:
    return f"(set, {HIDDEN[1:-1]})" if spec.secret and value else value or None


def _provider(values: Mapping[str, str]) -> str:
    name = values["TALLY_PROVIDER"]
    if name not in ("simulator", *KNOWN):
        raise Misconfigured(f"TALLY_PROVIDER is {name!r}: it must be simulator, {', '.join(KNOWN)}")
    if name != "simulator" and not values.get(f"TALLY_{name.upper()}_API_KEY"):
        raise Misconfigured(f"TALLY_PROVIDER is {name}, and TALLY_{name.upper()}_API_KEY is not set")
    return name


def _account(name: str, values: Mapping[str, str]) -> ProviderSettings:
    prefix = f"TALLY_{name.upper()}_"
    own = {key.removeprefix(prefix).lower(): value for key, value in values.items() if key.startswith(prefix) and value}
    for needed in (one.name.lower() for one in KNOWN[name].settings if one.is_needed):
        if needed not in own:
            raise Misconfigured(f"{prefix}API_KEY is set, and {prefix}{needed.upper()} is not: {name} needs both")
    if "api_base" not in own:
        raise Misconfigured(f"{prefix}API_BASE is empty")
    fault = KNOWN[name].fault(own)
    if fault is not None:
        raise Misconfigured(fault)
    key = own.pop("api_key")
    if not key.isascii() or not key.isprintable() or key != key.strip():
        raise Misconfigured(f"{prefix}API_KEY holds spaces, line breaks or other characters that no key has")
    rate = own.pop("requests_per_second", None)
    timeout = f"{prefix}SETTLEMENT_TIMEOUT_SECONDS"
    own.pop("settlement_timeout_seconds", None)
    secrets = [secret.strip() for secret in own.pop("webhook_secret", "").split(",")]
    return ProviderSettings(
        api_key=Secret(key),
        api_base=own.pop("api_base"),
        webhook_secrets=tuple(Secret(secret) for secret in secrets if secret),
        requests_per_second=None if rate is None else _rate(f"{prefix}REQUESTS_PER_SECOND", rate),
        more=own,
        settlement_timeout_seconds=_seconds(values, timeout) if values.get(timeout) else None,
    )


def _rate(name: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= _HIGHEST_RATE:
        raise Misconfigured(f"{name} is {text!r}: it must be a number above 0, at most {_HIGHEST_RATE:,}")
    return rate


def _rate_or_none(values: Mapping[str, str], name: str) -> float | None:
    """0: none."""
    try:
        return None if values[name] == "0" else _rate(name, values[name])
    except Misconfigured as error:
        raise Misconfigured(f"{error}; or 0 for no limit") from error


def _require_known(name: str, known: set[str], where: str) -> None:
    if name not in known:
        message = f"{name} (in {where}) is not a setting; `tally config` lists them"
        raise Misconfigured(message)


def _from_file(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{path}: {error}"
        raise Misconfigured(message) from error
    values = {}
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, str | int):
            message = f"{name} (in {path}) must be text or a whole number"
            raise Misconfigured(message)
        values[name.upper()] = str(value)
    return values
