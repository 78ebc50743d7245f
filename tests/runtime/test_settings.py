"""Settings: read together, every error named, nothing secret repeated."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from postroad.clock import seconds
from postroad.errors import SettingsError
from postroad.runtime.settings import SETTINGS, LogForm, Need, Role, Settings, TopologyMode, Vouch, read_settings

DATABASE = {"POSTROAD_DATABASE_URL": "postgresql://u:hush@h/d"}
BOTH = {**DATABASE, "POSTROAD_BROKER_URL": "amqps://u:hush@h/v"}
PAGE = Path(__file__).parents[2] / "docs" / "running.md"


def test_defaults() -> None:
    settings = read_settings(BOTH)
    assert settings.direct_url == settings.database_url == DATABASE["POSTROAD_DATABASE_URL"]
    assert settings.grace == seconds(25)
    assert settings.roles == frozenset(Role)
    assert (settings.schema, settings.health_port, settings.health_host) == ("postroad", None, "127.0.0.1")


def test_everything_can_be_set() -> None:
    settings = read_settings({
        **BOTH, "POSTROAD_DIRECT_URL": "postgres://h2/d", "POSTROAD_MANAGEMENT_URL": "http://h:15672",
        "POSTROAD_SCHEMA": "road", "POSTROAD_ROLES": "dispatch, work", "POSTROAD_TOPOLOGY": "apply",
        "POSTROAD_GRACE_SECONDS": "2.5", "POSTROAD_START_TIMEOUT": "1", "POSTROAD_POOL_SIZE": "4",
        "POSTROAD_SHARD_LEASE_SECONDS": "3", "POSTROAD_WORKER_LEASE_SECONDS": "5", "POSTROAD_HEALTH_PORT": "0",
        "POSTROAD_HEALTH_HOST": "0.0.0.0", "POSTROAD_LOG": "json", "POSTROAD_LOG_LEVEL": "debug",
    })  # fmt: skip
    assert settings == Settings(
        database_url="postgresql://u:hush@h/d", direct_url="postgres://h2/d", broker_url="amqps://u:hush@h/v",
        management_url="http://h:15672", schema="road", roles=frozenset({Role.DISPATCH, Role.WORK}),
        topology=TopologyMode.APPLY, grace=seconds(2.5), start_timeout=seconds(1), pool_size=4, shard_lease=seconds(3),
        worker_lease=seconds(5), health_port=0, health_host="0.0.0.0", log=LogForm.JSON, log_level="debug",
    )  # fmt: skip


def test_every_wrong_variable_is_named_in_one_error_with_its_remedy() -> None:
    wrong = {
        "POSTROAD_DATABASE_URL": "mysql://u:hush@h/d", "POSTROAD_BROKER_URL": "kafka:", "POSTROAD_SCHEMA": "Road",
        "POSTROAD_ROLES": "fly", "POSTROAD_TOPOLOGY": "maybe", "POSTROAD_GRACE_SECONDS": "nan",
        "POSTROAD_POOL_SIZE": "1_0", "POSTROAD_HEALTH_PORT": "70000", "POSTROAD_LOG": "xml",
    }  # fmt: skip
    with pytest.raises(SettingsError) as caught:
        read_settings(wrong)
    text = str(caught.value)
    assert caught.value.code == "PR201"
    assert "\n" not in text
    for name in wrong:
        assert name in text


@pytest.mark.parametrize(
    "url", ["postgresql://u:hush@h:x/d", "postgresql://u:hush@[h/d", "amqp:/hush", "hush", "//hush"]
)
def test_no_value_of_a_url_is_ever_repeated(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"POSTROAD_DATABASE_URL": url, "POSTROAD_BROKER_URL": url, "POSTROAD_MANAGEMENT_URL": url})
    assert "hush" not in str(caught.value)


def test_a_url_may_name_several_hosts() -> None:
    given = {
        "POSTROAD_DATABASE_URL": "postgresql://u:hush@one:1,two/d?target_session_attrs=read-write",
        "POSTROAD_BROKER_URL": "amqp://u:hush@one:5672,two:5672,[::1]/v",
    }
    settings = read_settings(given)
    assert settings.broker_url == given["POSTROAD_BROKER_URL"]
    assert settings.direct_url == given["POSTROAD_DATABASE_URL"]


@pytest.mark.parametrize(
    ("variable", "url", "said"),
    [
        ("POSTROAD_BROKER_URL", "amqp://u:hush@one,/v", "names no host before or after a comma"),
        ("POSTROAD_BROKER_URL", "amqp://u:hush@,one/v", "names no host before or after a comma"),
        ("POSTROAD_BROKER_URL", "amqp://u:hush@one,two:x/v", "cannot be read"),
        ("POSTROAD_DATABASE_URL", "postgresql://u:hush@one,two:0/d", "is not a URL of this kind"),
        ("POSTROAD_DATABASE_URL", "postgresql://u:hush@one,:5432/d", "names no host before or after a comma"),
        ("POSTROAD_MANAGEMENT_URL", "http://u:hush@one:1,two:1", "names several hosts; one is enough"),
    ],
)
def test_several_hosts_that_cannot_be_read_are_refused(variable: str, url: str, said: str) -> None:
    with pytest.raises(SettingsError, match=f"{variable} {said}") as caught:
        read_settings({**BOTH, variable: url})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("value", ["-1", "0", "inf", "1e9", "", " ", "٣", "1_0", "0x10"])
def test_numbers_are_plain_numbers_in_their_range(value: str) -> None:
    given = {**BOTH, "POSTROAD_POOL_SIZE": value}
    if not value.strip():
        assert read_settings(given).pool_size is None
        return
    with pytest.raises(SettingsError, match="POSTROAD_POOL_SIZE"):
        read_settings(given)


@pytest.mark.parametrize(
    ("roles", "missing"),
    [
        ({Role.DISPATCH}, {"POSTROAD_DATABASE_URL", "POSTROAD_BROKER_URL"}),
        ({Role.CONSUME}, {"POSTROAD_DATABASE_URL", "POSTROAD_BROKER_URL"}),
        ({Role.WORK}, {"POSTROAD_DATABASE_URL"}), ({Role.MAINTAIN}, {"POSTROAD_DATABASE_URL"}), (set(), set()),
    ],
)  # fmt: skip
def test_only_what_the_roles_need_is_required(roles: set[Role], missing: set[str]) -> None:
    if not missing:
        assert read_settings({}, roles=frozenset(roles)).database_url == ""
        return
    with pytest.raises(SettingsError) as caught:
        read_settings({}, roles=frozenset(roles))
    text = str(caught.value)
    assert {
        name for name in ("POSTROAD_DATABASE_URL", "POSTROAD_BROKER_URL") if f"{name} is not set" in text
    } == missing


def test_an_act_may_need_the_broker_alone() -> None:
    broker = {"POSTROAD_BROKER_URL": "amqp://h"}
    assert read_settings(broker, needs=frozenset({Need.BROKER})).broker_url == "amqp://h"


def test_the_transport_without_a_broker_is_one_word_and_what_protects_a_broker_is_refused_beside_it() -> None:
    without = {**BOTH, "POSTROAD_BROKER_URL": "postgres:"}
    assert read_settings(without).broker_url == "postgres:"
    for url in ("postgres://u:hush@h/d", "postgres:other", "postgresql://h/d"):
        with pytest.raises(SettingsError, match="POSTROAD_BROKER_URL") as caught:
            read_settings({**without, "POSTROAD_BROKER_URL": url})
        assert "hush" not in str(caught.value)
        assert "postgres:" in str(caught.value)
    with pytest.raises(SettingsError, match="POSTROAD_VOUCH"):
        read_settings({**without, "POSTROAD_VOUCH": "on"})


def test_a_misspelt_setting_is_an_error_and_a_stranger_is_kept_for_a_warning() -> None:
    with pytest.raises(
        SettingsError, match=r"POSTROAD_GRACE_SECOND is not a setting; did you mean POSTROAD_GRACE_SECONDS\?"
    ):
        read_settings({**BOTH, "POSTROAD_GRACE_SECOND": "3"})
    kubernetes = {
        "POSTROAD_PORT": "tcp://10.0.0.1:80",
        "POSTROAD_SERVICE_HOST": "10.0.0.1",
        "POSTROAD_PORT_80_TCP": "x",
    }
    settings = read_settings({**BOTH, **kubernetes, "POSTROAD_TEST_X": "1", "POSTROAD_DEBUG": "1"})
    assert settings.strangers == tuple(sorted(kubernetes))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("POSTROAD_GRACE", "POSTROAD_GRACE_SECONDS"), ("POSTROAD_DATABASE", "POSTROAD_DATABASE_URL"),
        ("POSTROAD_HEALTH", "POSTROAD_HEALTH_HOST or POSTROAD_HEALTH_PORT"),
    ],
)  # fmt: skip
def test_the_beginning_of_a_setting_is_a_misspelt_setting(given: str, meant: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({**BOTH, given: "3"})
    assert str(caught.value).startswith(f"{given} is not a setting; did you mean {meant}?")


def test_every_setting_fills_a_field_and_stands_in_the_documentation() -> None:
    assert {setting.field for setting in SETTINGS} | {"strangers"} == {field.name for field in fields(Settings)}
    rows = {
        tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("| `POSTROAD_")
    }  # fmt: skip
    assert {(f"`{setting.variable}`", setting.default, setting.says) for setting in SETTINGS} <= rows


def test_certificates_are_files_that_can_be_read(tmp_path: Path) -> None:
    there, gone = tmp_path / "ca.pem", tmp_path / "gone.pem"
    there.write_text("any")
    tls = {**BOTH, "POSTROAD_BROKER_URL": "amqps://h"}
    assert read_settings({**tls, "POSTROAD_BROKER_CA": f"{there}"}).broker_ca == f"{there}"
    for variable in ("POSTROAD_BROKER_CA", "POSTROAD_BROKER_CERT", "POSTROAD_BROKER_KEY"):
        for value in (f"{gone}", f"{tmp_path}", "x\0y"):
            with pytest.raises(SettingsError, match=f"{variable} is .* a file that can be read"):
                read_settings({**tls, variable: value})


def test_certificates_that_would_protect_nothing_are_refused(tmp_path: Path) -> None:
    there = tmp_path / "ca.pem"
    there.write_text("any")
    plain = {**BOTH, "POSTROAD_BROKER_URL": "amqp://h"}
    with pytest.raises(SettingsError, match=r"POSTROAD_BROKER_CA would protect nothing.*not amqps://"):
        read_settings({**plain, "POSTROAD_BROKER_CA": f"{there}"})
    with pytest.raises(SettingsError, match="POSTROAD_BROKER_KEY needs POSTROAD_BROKER_CERT"):
        read_settings({**plain, "POSTROAD_BROKER_URL": "amqps://h", "POSTROAD_BROKER_KEY": f"{there}"})


def test_vouching_is_off_unless_it_is_asked_for() -> None:
    assert read_settings(BOTH).vouch is Vouch.OFF
    assert read_settings({**BOTH, "POSTROAD_VOUCH": "on"}).vouch is Vouch.ON
    with pytest.raises(SettingsError, match="POSTROAD_VOUCH is 'yes'; it must be one of off, on"):
        read_settings({**BOTH, "POSTROAD_VOUCH": "yes"})
