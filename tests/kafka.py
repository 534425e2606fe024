"""Real Kafka brokers for the tests: Apache Kafka in KRaft mode, private data directories, ended by process id.

The jars are fetched by scripts/test-kafka (`make test` runs it) into a folder of the checkout, by Maven's own client,
and held against hashes. A run of tests lends its single broker to the runs that it starts (`LENT`).
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.servers import PATIENCE_SECONDS, Missing, _free_port

JARS = Path(os.environ.get("TALLY_TEST_KAFKA_JARS", Path(__file__).parents[1] / ".kafka" / "jars"))
LENT = "TALLY_TEST_KAFKA"
# Any 22 characters of base64: what a cluster calls itself.
CLUSTER = "dGFsbHlzdGljay10ZXN0cw"
# A broker of the tests does little: starting it is most of what it costs.
JAVA = (
    "java",
    "-Xmx192m",
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
)


def missing() -> list[Missing]:
    """Why Kafka cannot be tested here."""
    if shutil.which("java") is None:
        return [Missing("Kafka", "no java; install Debian's default-jre-headless (17 or newer)")]
    if not (JARS / ".complete").exists():
        return [Missing("Kafka", f"no jars in {JARS}; scripts/test-kafka fetches them with Maven")]
    return []


def single() -> "Single | Missing":
    """A cluster of one."""
    return next(iter(missing()), None) or Single()


def borrowed(address: str) -> "Single":
    """One that another run of tests started and will end: its port, process id and folder."""
    return Lent(address)


class Broker:
    """One node of a cluster: broker and controller in one process. Keeps its address over a restart."""

    def __init__(self, folder: Path, number: int, ports: list[tuple[int, int]]) -> None:
        self.number = number
        self.port, controller = ports[number - 1]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        voters = ",".join(f"{place}@127.0.0.1:{port}" for place, (_, port) in enumerate(ports, 1))
        copies = min(3, len(ports))
        # One that died is noticed within the tests' patience, where others can take over. One alone is never given up:
        # on a busy machine it would be fenced by its own controller, and no topic could be made or read.
        session = 3_000 if len(ports) > 1 else 600_000
        data = folder / "data"
        data.mkdir(parents=True)
        # What `kafka-storage format` writes: a start of Java less.
        (data / "meta.properties").write_text(f"version=1\ncluster.id={CLUSTER}\nnode.id={number}\n")
        (folder / "server.properties").write_text(
            "\n".join(
                (
                    "process.roles=broker,controller",
                    f"node.id={number}",
                    f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
                    "controller.listener.names=CONTROLLER",
                    f"controller.quorum.voters={voters}",
                    f"log.dirs={data}",
                    "offsets.topic.num.partitions=1",
                    f"offsets.topic.replication.factor={copies}",
                    # A topic that nobody made on purpose would be as weak as the defaults are.
                    "auto.create.topics.enable=false",
                    "group.initial.rebalance.delay.ms=0",
                    "group.min.session.timeout.ms=1000",
                    f"replica.lag.time.max.ms={session}",
                    f"broker.session.timeout.ms={session}",
                    "broker.heartbeat.interval.ms=500",
                    "controller.quorum.election.timeout.ms=500",
                    "controller.quorum.fetch.timeout.ms=1000",
                    "num.network.threads=1",
                    "num.io.threads=2",
                    "background.threads=1",
                    "log.cleaner.enable=false",
                )
            )
        )

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*JAVA, "-cp", f"{JARS}/*", "kafka.Kafka", str(self._folder / "server.properties")],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """A crash. Does nothing when it is down."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    @property
    def process_id(self) -> int:
        if self._process is None:
            raise RuntimeError("this broker is down")
        return self._process.pid

    @property
    def ended(self) -> str | None:
        """What it said, if it ended by itself."""
        if self._process is None or self._process.poll() is None:
            return None
        return (self._folder / "log").read_text(errors="replace")[-2000:]


class Cluster:
    """Brokers that know each other."""

    def __init__(self, size: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tally-test-kafka-", dir="/tmp"))
        ports = [(_free_port(), _free_port()) for _ in range(size)]
        self.brokers = [Broker(self._folder / str(number), number, ports) for number in range(1, size + 1)]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()
        self.wait(len(self.brokers))
        self._wait_for_groups()

    def wait(self, count: int) -> None:
        """Until so many brokers are known."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200})
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if len(admin.list_topics(timeout=1).brokers) >= count:
                    return
            except KafkaException:
                pass
            ended = [said for broker in self.brokers if (said := broker.ended) is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start: {ended}")
            time.sleep(0.05)

    def _wait_for_groups(self) -> None:
        """The first group that is asked about has their topic made: no test's consumer shall be told to come back."""
        member = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "nobody", "log_level": 0})
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                member.committed([TopicPartition("nothing", 0)], timeout=1)
                break
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise RuntimeError("Kafka looks after no groups") from error
        member.close()

    def remove(self) -> None:
        for broker in self.brokers:
            broker.kill()
        shutil.rmtree(self._folder)


class Single(Cluster):
    """One broker, for most tests: they share it, each with a topic of its own."""

    def __init__(self) -> None:
        super().__init__(1)

    def halt(self) -> None:
        """It takes connections and answers nothing: a broker that hangs, or a network that swallows."""
        self.brokers[0].signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.brokers[0].signal(signal.SIGCONT)

    @property
    def lent(self) -> dict[str, str]:
        """For the environment of a run that may use it."""
        return {LENT: f"{self.brokers[0].port},{self.brokers[0].process_id}"}


class Lent(Single):
    """One that another run of tests started and will end."""

    def __init__(self, address: str) -> None:
        port, process_id = address.split(",")
        self._address, self._process_id = f"127.0.0.1:{port}", int(process_id)

    @property
    def bootstrap(self) -> str:
        return self._address

    @property
    def lent(self) -> dict[str, str]:
        return {}

    def start(self) -> None:
        """It runs."""

    def halt(self) -> None:
        os.kill(self._process_id, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._process_id, signal.SIGCONT)

    def remove(self) -> None:
        self.go_on()
