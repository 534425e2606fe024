"""Bugs in how a database is migrated, granted and judged: see `bugs`."""

from collections.abc import Mapping
from typing import Any, Final, cast

import asyncpg

from tallystick import app
from tallystick.database import feed, migrate, roles, verify
from tests.planted.bug import Bug, migrated

ROLES: Final = "tests/database/test_roles.py::"
RETENTION: Final = "tests/database/test_retention.py::"
SCHEMA: Final = "tests/cli/test_schema.py::"


def judged_unseen() -> None:
    """Whoever is shown no row says that every rule holds for all of them."""

    async def nothing(_connection: asyncpg.Connection) -> None:
        pass

    cast("Any", verify).require_sight = nothing
    cast("Any", migrate).require_sight = nothing


def granted_everything() -> None:
    """The service's role may change what is only added to."""
    wanted = roles._SQL["wanted"].replace("r.is_append_only", "false")
    if wanted == roles._SQL["wanted"]:
        raise ValueError("nothing is append-only any more")
    roles._SQL["wanted"] = wanted


def migrated_at_start() -> None:
    """Whoever looks whether the schema is there makes it."""
    original = migrate.require_current

    async def require_current(dsn: str, *, writing: bool = False) -> None:
        await migrate.migrate(dsn)
        await original(dsn, writing=writing)

    cast("Any", app).require_current = require_current


def evidence_trimmed_too_early() -> None:
    """The provider's words go although an attempt of the key is unknown: a person could no longer read them."""
    migrated(
        (
            "AND (b.answer IS NULL OR b.answer = 'unknown' OR b.server_error))\n    ), gone AS",
            "AND false)\n    ), gone AS",
        )
    )


def archived_key_is_free() -> None:
    """A key whose answer was moved to the archive may be answered anew."""
    migrated(("RAISE unique_violation USING MESSAGE = 'tally: this key was", "RAISE NOTICE 'tally: this key was"))


def read_in_the_life_before() -> None:
    """A row goes by its transaction's number alone, which counts anew in a restored dump."""
    migrated((" AND x.number <= passed.least", ""))


def read_before_it_was_told() -> None:
    """A follower may say that it has what nobody can read yet."""
    sql = feed._SQL["relayed"].replace("$2::text::xid8 < pg_snapshot_xmin(pg_current_snapshot())", "true")
    if sql == feed._SQL["relayed"]:
        raise ValueError("a place is no longer compared with what can be read")
    feed._SQL["relayed"] = sql


OPERATION_BUGS: Mapping[str, Bug] = {
    "judged_unseen": Bug(
        judged_unseen,
        (
            ROLES + "test_who_is_not_shown_every_row_judges_nothing[embedded18-verify]",
            ROLES + "test_who_is_not_shown_every_row_judges_nothing[embedded18-settle]",
            ROLES + "test_an_owner_who_is_bound_himself_judges_nothing[embedded18]",
        ),
    ),
    "granted_everything": Bug(
        granted_everything, (ROLES + "test_migrate_makes_the_role_and_prints_what_it_may[embedded18]",)
    ),
    "evidence_trimmed_too_early": Bug(
        evidence_trimmed_too_early, (RETENTION + "test_every_decision_is_the_same_before_and_after",)
    ),
    "archived_key_is_free": Bug(
        archived_key_is_free,
        (RETENTION + "test_an_archived_answer_is_answered_to_the_byte_and_its_key_stays_used",),
    ),
    "read_in_the_life_before": Bug(
        read_in_the_life_before,
        (RETENTION + "test_what_a_restored_dump_writes_is_not_gone_by_what_was_read_before_it",),
    ),
    "read_before_it_was_told": Bug(
        read_before_it_was_told, ("tests/cli/test_outbox.py::test_nobody_has_what_cannot_be_read_yet",)
    ),
    "migrated_at_start": Bug(migrated_at_start, (SCHEMA + "test_the_library_migrates_no_database_that_it_was_given",)),
}
