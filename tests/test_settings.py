"""Settings: the environment wins over the file, and nothing unknown is let through."""

from pathlib import Path

import pytest

from tallystick.errors import Misconfigured
from tallystick.settings import load


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "tally.toml").write_text('tally_port = 9000\ntally_host = "127.0.0.2"\n')
    settings = load({"TALLY_PORT": "9001"}, tmp_path)
    assert (settings.port, settings.host) == (9001, "127.0.0.2")
    assert settings.origins["TALLY_PORT"] == "environment"
    assert settings.origins["TALLY_HOST"] == "tally.toml"
    assert settings.origins["TALLY_HOME"] == "default"


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"TALLY_PROT": "1"}, "TALLY_PROT"),
        ({"TALLY_PORT": "eighty"}, "TALLY_PORT"),
        ({"TALLY_PORT": "70000"}, "TALLY_PORT"),
        ({"TALLY_PORT": ""}, "TALLY_PORT"),
        ({"TALLY_HOST": ""}, "TALLY_HOST"),
        ({"TALLY_API_KEY": "short"}, "TALLY_API_KEY"),
        ({"TALLY_HOME": ""}, "TALLY_HOME"),
        ({"TALLY_RESERVATION_TTL_SECONDS": "0"}, "TALLY_RESERVATION_TTL_SECONDS"),
        ({"TALLY_RESERVATION_TTL_SECONDS": "soon"}, "TALLY_RESERVATION_TTL_SECONDS"),
        ({"TALLY_RESERVATION_TTL_SECONDS": "nan"}, "TALLY_RESERVATION_TTL_SECONDS"),
        ({"TALLY_RESERVATION_TTL_SECONDS": "86401"}, "TALLY_RESERVATION_TTL_SECONDS"),
        ({"TALLY_RESERVATION_GRACE_SECONDS": "-1"}, "TALLY_RESERVATION_GRACE_SECONDS"),
        ({"TALLY_TENANT_REQUESTS_PER_SECOND": "-1"}, "TALLY_TENANT_REQUESTS_PER_SECOND"),
        ({"TALLY_TENANT_REQUESTS_PER_SECOND": "nan"}, "TALLY_TENANT_REQUESTS_PER_SECOND"),
        ({"TALLY_TENANT_REQUESTS_PER_SECOND": "many"}, "TALLY_TENANT_REQUESTS_PER_SECOND"),
        ({"TALLY_TENANT_REQUESTS_PER_SECOND": ""}, "TALLY_TENANT_REQUESTS_PER_SECOND"),
        ({"TALLY_KAFKA_BOOTSTRAP": "kafka.example"}, "TALLY_KAFKA_BOOTSTRAP"),
        ({"TALLY_KAFKA_BOOTSTRAP": "a:9092,"}, "TALLY_KAFKA_BOOTSTRAP"),
        ({"TALLY_KAFKA_BOOTSTRAP": "a:70000"}, "TALLY_KAFKA_BOOTSTRAP"),
        ({"TALLY_KAFKA_BOOTSTRAP": "http://a:9092"}, "TALLY_KAFKA_BOOTSTRAP"),
        ({"TALLY_KAFKA_TOPIC": "web hooks"}, "TALLY_KAFKA_TOPIC"),
        ({"TALLY_KAFKA_TOPIC": ""}, "TALLY_KAFKA_TOPIC"),
        ({"TALLY_KAFKA_BOOTSTRAP": "a:1", "TALLY_KAFKA_SECURITY": "acks=0"}, "TALLY_KAFKA_SECURITY"),
        ({"TALLY_KAFKA_BOOTSTRAP": "a:1", "TALLY_KAFKA_SECURITY": "sasl.username"}, "TALLY_KAFKA_SECURITY"),
    ],
)
def test_a_wrong_setting_stops_the_start_with_its_name(environment: dict[str, str], named: str, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=named):
        load(environment, tmp_path)


@pytest.mark.parametrize("text", ["tally_unknown = 1", "tally_port = true", "tally_port = [1]", "not toml"])
def test_a_wrong_file_stops_the_start(text: str, tmp_path: Path) -> None:
    (tmp_path / "tally.toml").write_text(text)
    with pytest.raises(Misconfigured):
        load({}, tmp_path)


def test_secrets_do_not_show_in_a_printed_settings_object(tmp_path: Path) -> None:
    settings = load(
        {"TALLY_DATABASE_URL": "postgresql://u:hunter2@h/d", "TALLY_API_KEY": "tsk_secret-that-is-long-enough"},
        tmp_path,
    )
    assert "hunter2" not in repr(settings)
    kafka = load(
        {"TALLY_KAFKA_BOOTSTRAP": "a:1", "TALLY_KAFKA_SECURITY": "sasl.username=u;sasl.password=hunter3"}, tmp_path
    )
    assert kafka.kafka is not None
    assert kafka.kafka.security == {"sasl.username": "u", "sasl.password": "hunter3"}
    assert "hunter3" not in repr(kafka)
    assert "hunter3" not in str(kafka.shown)
    assert "tsk_secret-that-is-long-enough" not in repr(settings)


def test_a_reservation_holds_as_long_as_the_settings_say(tmp_path: Path) -> None:
    assert (load({}, tmp_path).reservation_ttl_seconds, load({}, tmp_path).reservation_grace_seconds) == (600, 30)
    chosen = {"TALLY_RESERVATION_TTL_SECONDS": "120", "TALLY_RESERVATION_GRACE_SECONDS": "0"}
    settings = load(chosen, tmp_path)
    assert (settings.reservation_ttl_seconds, settings.reservation_grace_seconds) == (120, 0)
