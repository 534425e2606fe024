"""Who is named for what is decided at a terminal: the kernel's word, not the environment's."""

import os
import pwd

import pytest

from tallystick.cli.person import system_user

NOBODY = pwd.getpwnam("nobody")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)


def test_the_environment_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER"):
        monkeypatch.setenv(name, "somebody-else")
    assert system_user() == pwd.getpwuid(os.getuid()).pw_name


def test_root_by_way_of_sudo_is_whoever_called_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", str(NOBODY.pw_uid))
    assert system_user() == "nobody"


def test_who_is_not_root_is_not_called_otherwise_by_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can write it into his own environment."""
    monkeypatch.setattr(os, "getuid", lambda: NOBODY.pw_uid)
    monkeypatch.setenv("SUDO_UID", "0")
    assert system_user() == "nobody"


@pytest.mark.parametrize("written", ["", "-1", "x", "1.5", "\N{SUPERSCRIPT TWO}"])
def test_what_is_no_number_is_not_read(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", written)
    assert system_user() == pwd.getpwuid(0).pw_name


@pytest.mark.parametrize("number", [4_000_000_001, 2**70])
def test_a_number_without_a_name_is_told_as_a_number(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As in a container whose user is in no passwd."""
    monkeypatch.setattr(os, "getuid", lambda: number)
    monkeypatch.setenv("LOGNAME", "somebody-else")
    assert system_user() == f"uid {number}"
