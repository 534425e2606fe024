"""Exceptions: a bug, or broken I/O. Expected refusals are values (`core.outcome.Rejected`).

TallystickError
  ├── Busy              nothing was recorded: the queue is full, try again after a moment
  ├── InFlight          the same key is being worked on by somebody else for longer than we wait
  ├── OutcomeUnknown    the database vanished around COMMIT: send again with the same key
  ├── Unreachable       the database cannot be reached; nothing was recorded
  ├── LogUnreachable    the log of webhooks (Kafka) did not take it in time, or cannot be asked
  ├── Faulted           the operation's own handler failed; rolled back, the key is unused
  ├── CallerTransaction submit(connection=...) was given a connection it cannot use
  ├── ProviderUnreachable  a provider's list broke off; nothing was sent
  ├── NotOffered        the provider has no such thing; its facts say so
  ├── NoSimulator       the simulator could not be started; nothing was sent
  ├── Misconfigured     settings or environment are wrong; the message names which
  ├── SchemaMismatch    the database is newer than this code, or was changed by hand
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
    """The database was restored from a backup, copied, or taken over by a standby: what it says may be old."""

    def __init__(self) -> None:
        """The same for every flow that sends."""
        super().__init__(
            "database_restored: this database is not the one that sending was last confirmed for: it was restored from "
            "a backup, copied, or promoted from a standby. Payments it shows as unsent may have been made. Nothing was "
            "sent. Run `tally recover`: it asks the providers about every unfinished payment, then lets work go on."
        )


class SchemaMismatch(TallystickError):
    """The database's schema is not one this code may work on."""


class InvariantBroken(TallystickError):
    """A rule of the constitution does not hold. Always a bug: never caught to go on."""


def require(condition: object, what: str) -> None:
    """Raise InvariantBroken unless `condition` holds. Unlike assert it survives `python -O`."""
    if not condition:
        raise InvariantBroken(what)
