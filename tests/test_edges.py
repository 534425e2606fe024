"""What is used of other packages without their promise: in one place each, and only of versions it was tried with."""

import ast
import inspect
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Final

import asyncpg
import pytest
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tallystick"
# Of uvicorn's protocol (`http/http1`): what ours overrides, calls or reads.
PROTOCOL: Final = (
    "_unset_keepalive_if_required",
    "client",
    "connection_lost",
    "connection_made",
    "cycle",
    "data_received",
    "flow",
    "headers",
    "loop",
    "on_body",
    "on_header",
    "on_headers_complete",
    "on_message_begin",
    "on_message_complete",
    "on_response_complete",
    "parser",
    "pause_writing",
    "pipeline",
    "resume_writing",
    "scope",
    "send_400_response",
    "server_state",
    "shutdown",
    "tasks",
    "timeout_keep_alive",
    "timeout_keep_alive_handler",
    "timeout_keep_alive_task",
    "transport",
    "url",
)
# Of its request and response, as `written` and the short ways finish them.
CYCLE: Final = (
    "default_headers",
    "disconnected",
    "flow",
    "keep_alive",
    "message_event",
    "on_response",
    "response_complete",
    "response_started",
    "scope",
    "transport",
    "waiting_for_100_continue",
)


def _has(of: type) -> set[str]:
    return set(dir(of)) | set(re.findall(r"self\.(\w+)", inspect.getsource(of)))


@pytest.mark.parametrize(("of", "names"), [(HttpToolsProtocol, PROTOCOL), (RequestResponseCycle, CYCLE)])
def test_uvicorn_still_has_what_our_protocol_is_made_of(of: type, names: tuple[str, ...]) -> None:
    lost = set(names) - _has(of)
    assert not lost, (
        f"uvicorn {metadata.version('uvicorn')} has no {sorted(lost)} in {of.__name__} any more: see how http/http1 "
        "uses them, before its version is raised in pyproject.toml"
    )


def test_the_list_is_what_is_used() -> None:
    """A name that is used and not listed would be missed."""
    known = _has(HttpToolsProtocol)
    used = {
        node.attr
        for file in (SOURCE / "http" / "http1").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and (
            (isinstance(node.value, ast.Name) and node.value.id == "self")
            or (isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super")
        )
    }
    assert (used & known) - {"__init__"} <= set(PROTOCOL)


def test_asyncpg_still_has_the_transport_of_a_connection() -> None:
    assert "_transport" in asyncpg.Connection.__slots__, (
        f"asyncpg {asyncpg.__version__} keeps a connection's transport elsewhere: database/pool.py needs it, to bound "
        "how long a server may be silent"
    )


@pytest.mark.parametrize("package", ["asyncpg", "uvicorn"])
def test_only_versions_that_were_tried_are_installed(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (asked,) = [one for one in map(Requirement, project["dependencies"]) if one.name == package]
    assert any(bound.operator == "<" for bound in asked.specifier), f"{package} needs an upper bound in pyproject.toml"
    assert asked.specifier.contains(metadata.version(package))


def test_private_parts_are_used_in_one_place_each() -> None:
    users = {
        str(file.relative_to(SOURCE)): text
        for file in SOURCE.rglob("*.py")
        if not {"bench", "simulator"} & set(file.relative_to(SOURCE).parts)
        for text in [file.read_text(encoding="utf-8")]
    }
    assert [path for path, text in users.items() if "connection._transport" in text] == ["database/pool.py"]
    assert {path for path, text in users.items() if "from uvicorn.protocols" in text} == {"http/http1/protocol.py"}
