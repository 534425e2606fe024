"""One room for each noun: what is pure imports what is pure, and no room reaches into another's store."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tallystick"
FILES = {str(file.relative_to(SOURCE)): file for file in sorted(SOURCE.rglob("*.py"))}

# Rooms that are pure as a whole, and the pure files of the others, besides each `rules.py`.
PURE_ROOMS: Final = {"money", "keys", "audit"}
PURE_FILES: Final = {
    "access/api_key.py",
    "checkout/payment/key.py",
    "checkout/payment/plan.py",
    "checkout/postings.py",
    "errors.py",
    "http/rate.py",
    "ledger/claims.py",
    "ledger/kinds.py",
    "ledger/outcome.py",
    "ledger/velocity.py",
    "movement/mark.py",
    "movement/steps.py",
    "movement/terms.py",
    "providers/words.py",
    "secret.py",
    "settlement/postings.py",
    "settlement/terms.py",
    "webhooks/record.py",
}
# A pure decision has no business with these: it could not be replayed by a model checker.
IMPURE = {"asyncio", "asyncpg", "os", "random", "secrets", "socket", "subprocess", "threading", "time"}
# What every room stands on: their stores are no room's own.
GROUND: Final = {"access", "commit", "database", "movement", "ledger"}
# Who puts rooms together, or measures and attacks them from inside.
OUTSIDE: Final = {
    "__init__.py",
    "app.py",
    "rooms.py",
    "library.py",
    "caller.py",
    "sync.py",
    "serverless.py",
    "workers",
    "cli",
    "bench",
    "probes",
}
# Only who puts rooms together may import these.
EDGES: Final = {"rooms", "app", "library", "sync", "serverless", "workers", "cli", "bench", "probes", "simulator"}
# But for these: a room's command opens the service, its views and `room.py` are given it, its workers rest as all do.
MAY_KNOW: Final = {
    "cli.py": {"app", "cli"},
    "room.py": {"app", "workers"},
    "views.py": {"app"},
    "worker.py": {"workers"},
    "api.py": {"app", "rooms"},
    "health.py": {"app"},
    "receiver.py": {"app"},
}
# What reaches into another room's store still. It may shrink: an entry that is not needed any more fails too.
DEBTS: Final[set[tuple[str, str]]] = {
    ("authority/cli.py", "checkout/policy_store"),
    ("authority/cli.py", "settlement/store"),
    ("database/retention.py", "webhooks/store"),
    ("reconciliation/break_cli.py", "checkout/break_store"),
    ("reconciliation/store.py", "settlement/tick/store"),
    ("recovery/flow.py", "settlement/review/store"),
    ("recovery/store.py", "settlement/tick/store"),
    ("settlement/review/store.py", "authority/store"),
    ("settlement/review/store.py", "checkout/break_store"),
    ("settlement/store.py", "authority/store"),
    ("settlement/tick/cli.py", "recovery/store"),
}


def _room(path: str) -> str:
    return path.partition("/")[0]


def _imports(file: Path) -> set[str]:
    """Every name of ours that a file imports, as a path below the package, without its ending."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{file}: say where from"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if _exists(inner) else node.module)
    return found


def _exists(module: str) -> bool:
    path = SOURCE.parent / Path(*module.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def _ours(path: str) -> Iterator[str]:
    for name in sorted(_imports(FILES[path])):
        if name.startswith("tallystick."):
            yield name.removeprefix("tallystick.").replace(".", "/")


def _is_pure(path: str) -> bool:
    return path in PURE_FILES or _room(path) in PURE_ROOMS or path.endswith("/rules.py")


def _is_store(target: str) -> bool:
    name = target.rpartition("/")[2]
    return name == "store" or name.endswith("_store")


PURE = [path for path in FILES if _is_pure(path)]
SIMULATOR = [path for path in FILES if _room(path) == "simulator"]
ROOMS = [path for path in FILES if _room(path) not in {*OUTSIDE, "simulator"}]


@pytest.mark.parametrize("path", PURE)
def test_what_decides_is_pure(path: str) -> None:
    """Whoever decides knows nothing of who stores, serves or starts him."""
    assert {name.split(".")[0] for name in _imports(FILES[path])} & IMPURE == set()
    assert [target for target in _ours(path) if not _is_pure(f"{target}.py")] == []


def test_no_room_reaches_into_another_s_store() -> None:
    reaching = {
        (path, target)
        for path in ROOMS
        for target in _ours(path)
        if _is_store(target) and _room(target) not in {_room(path), *GROUND}
    }
    assert reaching - DEBTS == set(), "ask its flow, or its rules"
    assert DEBTS - reaching == set(), "these are paid: strike them out"


def test_no_room_runs_another_s_statements() -> None:
    """They would go round its store by their text."""
    looked_at = 0
    for path in ROOMS:
        for where in re.findall(r"queries\.load\(\s*([^,)]+),", FILES[path].read_text(encoding="utf-8")):
            looked_at += 1
            named = re.fullmatch(r'"tallystick\.(\w+)[\w.]*"', where)
            assert where == "__package__" or (named and named[1] == _room(path)), (path, where)
    assert looked_at >= 40


@pytest.mark.parametrize("path", ROOMS)
def test_no_room_knows_who_puts_rooms_together(path: str) -> None:
    name = path.rpartition("/")[2]
    allowed = next((allowed for ending, allowed in MAY_KNOW.items() if name.endswith(ending)), set())
    assert {_room(target) for target in _ours(path)} & EDGES <= allowed


@pytest.mark.parametrize("path", SIMULATOR)
def test_the_simulator_knows_no_room(path: str) -> None:
    """A second opinion that repeats the first one's mistakes is none."""
    # Only the page, which shows amounts and decides nothing, reads them with our own table.
    allowed = ("simulator", "queries", *(("money",) if path.startswith("simulator/page/") else ()))
    assert [target for target in _ours(path) if _room(target) not in allowed] == []


def test_everything_is_looked_at() -> None:
    assert len(PURE) >= 30
    assert len(SIMULATOR) >= 30
    assert {path for path in PURE_FILES if path not in FILES} == set()
