"""What these tests need is installed by `make test`; where it is not, they fail and say so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.servers import installed


def test_a_test_whose_servers_are_missing_fails_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed.require()
    monkeypatch.setattr(installed, "MODULES", tmp_path)
    with pytest.raises(pytest.fail.Exception, match=r"Node\.js servers \(tests/node\)\. `make test` sets them up"):
        installed.require()
    installed.require("old", "clients")


def test_a_lock_that_changed_is_installed_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lock = tmp_path / "package-lock.json"
    lock.write_bytes(installed.LOCK.read_bytes() + b" ")
    monkeypatch.setattr(installed, "LOCK", lock)
    assert installed.missing() == {"node": "the Node.js servers (tests/node)"}


def test_a_change_to_either_list_of_clients_is_installed_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number, file in enumerate(installed.CLIENTS_FILES):
        changed = tmp_path / file.name
        changed.write_bytes(file.read_bytes() + b"\n")
        files = [*installed.CLIENTS_FILES[:number], changed, *installed.CLIENTS_FILES[number + 1 :]]
        monkeypatch.setattr(installed, "CLIENTS_FILES", files)
        assert list(installed.missing("clients")) == ["clients"]


def test_an_install_that_fails_says_what_failed_and_what_to_do(tmp_path: Path) -> None:
    script = "import sys; print(*range(40), sep='\\n'); sys.exit('no route to the registry')"
    with pytest.raises(installed.NotInstalled) as caught:
        installed._run("npm ci", [sys.executable, "-c", script], cwd=tmp_path, env={})
    assert "npm ci failed" in str(caught.value) and "no route to the registry" in str(caught.value)
    assert "run: make test" in str(caught.value) and len(str(caught.value).splitlines()) < 20


def test_the_lock_names_no_registry_and_pins_every_package_by_its_hash() -> None:
    text = installed.LOCK.read_text()
    assert '"resolved"' not in text and "registry." not in text
    assert text.count('"integrity": "sha512-') > 100
