"""Exceptions: a bug, or broken I/O. Expected refusals are values (`ledger.outcome.Rejected`).

TallystickError
  ├── Busy              nothing was recorded: the queue is full, try again after a moment
  │     ├── ShareUsed   the same, for this tenant alone: the others still have room
  │     ├── RateExceeded  this tenant asks for more in a second than it may
  │     └── TooManyGuesses  too many unknown API keys came from this address
  ├── InFlight          the same key is being worked on by somebody else for longer than we wait
  ├── OutcomeUnknown    the database vanished around COMMIT: send again with the same key
  ├── Unreachable       the database cannot be reached; nothing was recorded
  ├── LogUnreachable    the log of webhooks (Kafka) did not take it in time, or cannot be asked
  ├── Faulted           the operation's own handler failed; rolled back, the key is unused
  ├── Forked            this Tally was opened before a fork, by the parent
  ├── CallerTransaction submit(connection=...) was given a connection it cannot use
  ├── ProviderUnreachable  a provider's list broke off; nothing was sent
  ├── NotOffered        the provider has no such thing; its facts say so
  ├── NoSimulator       the simulator could not be started; nothing was sent
  ├── Misconfigured     settings or environment are wrong; the message names which
  ├── SchemaMismatch    the database lacks migrations, is too new for this code, or was changed by hand
  ├── MigrationBlocked  others hold what a migration needs; what was applied stays
  └── InvariantBroken   a rule of the constitution does not hold: a bug, stop and look
"""


class TallystickError(Exception):
    """Anything Tallystick raises on purpose."""


class Busy(TallystickError):
    """The bounded queue is full. Nothing was recorded."""

    def __init__(self, retry_after_seconds: float) -> None:
        """`retry_after_seconds` is a hint, not a promise."""
        super().__init__(
            f"busy: more work is waiting than can be held. No money moved. "
            f"Send the same request with the same key after {retry_after_seconds:g} s."
        )
        self.retry_after_seconds = retry_after_seconds


class ShareUsed(Busy):
    """This tenant has as much under way as its share is. Nothing was recorded; the others have room."""


class RateExceeded(Busy):
    """This tenant asks for more in a second than it may. Nothing was done; the others are served."""


class TooManyGuesses(Busy):
    """An address has tried too many unknown keys. Nothing was looked up."""


class InFlight(TallystickError):
    """Another request holds this key, or an account it needs, for longer than the bounded wait."""

    def __init__(self, waited_seconds: float) -> None:
        """`waited_seconds` is how long this caller was kept before being told."""
        super().__init__(
            f"in_flight: the key or an account of this operation was held by another transaction for "
            f"{waited_seconds:g} s. This request changed nothing. Send it again with the same key."
        )


class OutcomeUnknown(TallystickError):
    """The connection was lost around COMMIT. The operation may or may not have happened."""

    def __init__(self) -> None:
        """The same for everybody in the batch."""
        super().__init__(
            "outcome_unknown: the database connection was lost while the operation was being committed, "
            "so it may have happened. Send it again with the same key: it will happen once, or be replayed."
        )


class Unreachable(TallystickError):
    """The database cannot be reached, and nothing of this operation was committed."""

    def __init__(self, reason: str) -> None:
        """`reason` is the driver's, without credentials."""
        super().__init__(
            f"database_unreachable: {reason}. Nothing was recorded and no money moved. "
            f"Send the same request with the same key once the database is back."
        )


class LogUnreachable(TallystickError):
    """The log that webhooks go to first cannot be reached, or did not acknowledge in time."""

    def __init__(self, reason: str) -> None:
        """`reason` is the client's, without credentials."""
        super().__init__(
            f"log_unreachable: Kafka: {reason}. No webhook was acknowledged by it, and no money moved. Providers send "
            f"what was not acknowledged again; see TALLY_KAFKA_BOOTSTRAP and docs/operating.md."
        )


class Faulted(TallystickError):
    """The handler of the operation's kind raised, or wrote what the database refuses. The key is unused."""

    def __init__(self, kind: str) -> None:
        """The exception itself is the `__cause__`."""
        super().__init__(
            f"handler_failed: the handler of kind {kind!r} raised an exception, or wrote what the database "
            f"refuses. Nothing was recorded and no money moved. Fix the handler, then send the same request with "
            f"the same key."
        )


class Forked(TallystickError):
    """A child process used what its parent had opened: connections, tasks and threads do not come along."""

    def __init__(self, opened_by: int) -> None:
        """`opened_by` is the parent's process id."""
        super().__init__(
            f"This Tally was opened by process {opened_by}, before a fork. Nothing was done. "
            f"Open one in each process, after the fork."
        )


class CallerTransaction(TallystickError):
    """`submit(connection=...)` needs a young, open transaction on that connection."""


class ProviderUnreachable(TallystickError):
    """A provider could not be asked, or its answer broke off. Only reading calls raise it."""

    def __init__(self, provider: str, reason: str) -> None:
        """`reason` holds no credentials."""
        super().__init__(
            f"provider_unreachable: {provider}: {reason}. Nothing was sent and no money moved. Ask again later."
        )
        self.provider = provider


class PartlyUnreadable(ProviderUnreachable):
    """Everything was listed, and some of it cannot be read: none of ours, whose currencies and amounts we know."""


class NotOffered(TallystickError):
    """The provider has no such call. Its facts say so beforehand."""

    def __init__(self, provider: str, what: str) -> None:
        """`what` is the missing ability."""
        super().__init__(f"not_offered: {provider} has no {what}.")


class NoSimulator(TallystickError):
    """The provider simulator could not be started."""


class Misconfigured(TallystickError):
    """Settings or environment are wrong."""


class RestoredDatabase(TallystickError):
    """`tally recover` has begun and not ended: what the database says may be old, and nothing is sent from it."""

    def __init__(self) -> None:
        """The same for every flow that sends."""
        super().__init__(
            "database_restored: somebody began `tally recover` on this database, and it has not run to its end: what "
            "shows as unsent may have been paid by a life that was lost. Nothing was sent. Sending goes on when `tally "
            "recover` has ended; where it runs no more, run it again: it goes on with the wait that began."
        )


class SchemaMismatch(TallystickError):
    """The database's schema is not one this code may work on."""


class MigrationBlocked(TallystickError):
    """Others hold the locks that a migration needs, for longer than it is tried."""

    def __init__(self, reason: str) -> None:
        """`reason` names the step."""
        super().__init__(
            f"migration_blocked: {reason}. What was applied before stays, and the service goes on. Look for "
            f"transactions that stay open (the oldest xact_start in pg_stat_activity), then run `tally migrate` again."
        )


class InvariantBroken(TallystickError):
    """A rule of the constitution does not hold. Always a bug: never caught to go on."""


def require(condition: object, what: str) -> None:
    """Raise InvariantBroken unless `condition` holds. Unlike assert it survives `python -O`."""
    if not condition:
        raise InvariantBroken(what)
