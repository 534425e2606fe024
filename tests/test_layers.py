"""Imports point inward: whoever decides knows nothing of who stores, serves or starts him."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tallystick"

# What each part may import, besides itself. Read from the inside out.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "queries": set(),
    "settings": {"core", "errors"},
    "core": {"errors"},
    "engine": {"core", "errors", "settings"},
    "store": {"core", "engine", "errors", "queries", "settings"},
    "providers": {"core", "errors", "queries", "settings"},
    "eventlog": {"core", "engine", "errors", "settings", "store"},
    "flows": {"core", "engine", "errors", "providers", "settings", "store"},
    "app": {"core", "engine", "errors", "eventlog", "flows", "providers", "settings", "store"},
    "library": {"app", "core", "engine", "errors", "settings", "store"},
    "sync": {"library", "core", "errors", "store"},
    "workers": {"app", "core", "errors", "flows", "settings"},
    "serverless": {"app", "core", "errors", "providers", "settings"},
    "web": {"app", "core", "engine", "errors", "eventlog", "flows", "settings", "store"},
    "bench": {
        "app",
        "core",
        "engine",
        "errors",
        "eventlog",
        "flows",
        "providers",
        "queries",
        "settings",
        "store",
        "web",
        "workers",
    },
    "probes": {"app", "core", "errors", "flows", "providers", "queries", "settings", "store", "web"},
    "cli": {"app", "bench", "core", "errors", "flows", "probes", "providers", "settings", "store", "web", "workers"},
    "__init__": {"core", "errors", "library", "store", "sync"},
}
# A pure core has no business with these.
IMPURE = {"asyncio", "asyncpg", "os", "random", "secrets", "socket", "subprocess", "threading", "time"}


def _part(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "tallystick")
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_inward(file: Path) -> None:
    """An import the other way makes the core depend on what it must decide for."""
    own = _part(file)
    parts = {name.split(".")[1] for name in _imports(file) if name.startswith("tallystick.")}
    assert parts - {own} <= MAY_IMPORT[own], f"{own} must not import {sorted(parts - {own} - MAY_IMPORT[own])}"


@pytest.mark.parametrize("file", [file for file in FILES if _part(file) == "core"], ids=lambda file: file.name)
def test_the_core_is_pure(file: Path) -> None:
    """A clock, a socket or chance inside a decision cannot be replayed by a model checker."""
    roots = {name.split(".")[0] for name in _imports(file)}
    assert not roots & IMPURE


@pytest.mark.parametrize("file", [file for file in FILES if _part(file) == "providers"], ids=lambda file: file.name)
def test_the_simulator_shares_nothing_with_the_adapters(file: Path) -> None:
    """A second opinion that repeats the first one's mistakes is none."""
    names = {name for name in _imports(file) if name.startswith("tallystick.")}
    inside = "tallystick.providers.simulator"
    if "simulator" in file.parts:
        # Only the page, which shows amounts and decides nothing, reads them with our own table.
        page = ("tallystick.core.currencies", "tallystick.core.money") if "page" in file.parts else ()
        allowed = (inside, "tallystick.queries", *page)
        assert all(name.startswith(allowed) for name in names), names
    else:
        assert not any(name.startswith(inside) for name in names), names


def test_every_module_has_a_layer() -> None:
    assert {_part(file) for file in FILES} <= MAY_IMPORT.keys()
