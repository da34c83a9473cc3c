"""Guards the setting: what is meant is found, what cannot be meant is refused with the fix, and no password is
ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.errors import ConfigError
from ostinato.ledger import location
from ostinato.ledger.location import file_of, ledger_url, shown


def test_by_default_it_is_a_file_in_the_data_folder(tmp_path: Path) -> None:
    url = ledger_url(None, tmp_path)
    assert url is not None
    assert file_of(url) == tmp_path / "ledger.sqlite3"
    assert shown(url) == str(tmp_path / "ledger.sqlite3")


@pytest.mark.parametrize("setting", ["off", "OFF", " off "])
def test_it_can_be_switched_off(setting: str) -> None:
    assert ledger_url(setting, Path()) is None


def test_a_relative_file_is_relative_to_the_working_folder() -> None:
    url = ledger_url("sqlite:///a/b.sqlite3", Path("/elsewhere"))
    assert url is not None
    assert file_of(url) == Path.cwd() / "a" / "b.sqlite3"


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_a_server_is_spoken_to_with_psycopg(scheme: str) -> None:
    pytest.importorskip("psycopg", reason="psycopg is missing: pip install 'ostinato[postgres]'")
    url = ledger_url(f"{scheme}://u:pw@host/db", Path())
    assert url == "postgresql+psycopg://u:pw@host/db"
    assert file_of(url) is None


@pytest.mark.parametrize("setting", ["", "ledger.sqlite3", "mysql://u:pw@host/db", "sqlite:///"])
def test_what_is_no_ledger_is_refused_without_its_password(setting: str) -> None:
    with pytest.raises(ConfigError, match="sqlite:///FILE or postgresql://") as error:
        ledger_url(setting, Path())
    assert "pw" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://u:p/pw@host/db", "%2F"),
        ("postgresql://u:p@pw@host/db", "%40"),
        ("postgresql://u:p?pw@host/db", "number"),
        ("postgresql://u:pw@host:5432x/db", "port"),
        ("postgresql://u:pw@[::1]:x/db", "port"),
    ],
)
def test_a_url_that_would_be_read_otherwise_is_refused_at_once(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        ledger_url(url, Path())
    assert "pw" not in str(error.value)


@pytest.mark.parametrize(
    "place", ["host/db", "u:p%2Fw@host:5432/db", "u@[::1]:5/db", "/db?host=/run"]
)
def test_what_is_escaped_is_taken_as_it_is(place: str) -> None:
    assert ledger_url(f"postgresql://{place}", Path()) == f"postgresql+psycopg://{place}"


def test_a_missing_driver_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ostinato\[postgres\]'"):
        ledger_url("postgresql://host/db", Path())


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://u:pw@host/db",
        "postgresql+psycopg://:pw@host/db",
        "postgresql+psycopg://host/db?sslmode=require&password=pw",
        "postgresql+psycopg://u:p/pw@host/db",
        "postgresql+psycopg://u:p@pw@host/db",
        "postgresql+psycopg://u:pw:pw@host/db",
    ],
)
def test_passwords_are_not_shown(url: str) -> None:
    assert "pw" not in shown(url)
    assert "host/db" in shown(url)
