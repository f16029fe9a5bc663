"""Commands of a second process: each arrives whole and once, and no file can harm the run that reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from centuria.errors import JournalError
from centuria.journal import post_command, take_commands
from centuria.journal.mailbox import FOLDER, MAX_SIZE, MAX_WAITING


def test_commands_arrive_once_and_in_order(tmp_path: Path) -> None:
    assert take_commands(tmp_path) == []
    for number in range(20):
        post_command(tmp_path, {"kind": "cancel", "task": f"작업 {number}"})
    assert take_commands(tmp_path) == [{"kind": "cancel", "task": f"작업 {number}"} for number in range(20)]
    assert take_commands(tmp_path) == []
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_looking_for_commands_makes_nothing(tmp_path: Path) -> None:
    assert take_commands(tmp_path / "missing") == []
    assert take_commands(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_command_for_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no run folder"):
        post_command(tmp_path / "missing", {"kind": "cancel"})


def test_what_is_too_large_or_too_many_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="too large"):
        post_command(tmp_path, {"kind": "x" * MAX_SIZE})
    for _ in range(MAX_WAITING):
        post_command(tmp_path, {"kind": "cancel"})
    with pytest.raises(JournalError, match="nobody takes them"):
        post_command(tmp_path, {"kind": "cancel"})
    assert len(take_commands(tmp_path)) == MAX_WAITING


def test_what_is_no_command_is_removed_and_harms_nobody(tmp_path: Path) -> None:
    box = tmp_path / FOLDER
    box.mkdir()
    secret = tmp_path / "secret.json"
    secret.write_text('{"kind": "stolen"}')
    (box / "1.json").write_text("{")
    (box / "2.json").write_text("[1]")
    (box / "3.json").write_bytes(b"\xff\xfe")
    (box / "4.json").write_text("[" * MAX_SIZE)
    (box / "5.json").write_text(json.dumps({"kind": "y" * MAX_SIZE}))
    (box / "6.json").symlink_to(secret)
    os.mkfifo(box / "7.json")
    (box / ".8.part").write_text('{"kind": "unfinished"}')
    post_command(tmp_path, {"kind": "cancel"})
    assert take_commands(tmp_path) == [{"kind": "cancel"}]
    assert [file.name for file in box.iterdir()] == [".8.part"]
    assert secret.exists()


def test_a_box_that_leads_elsewhere_is_not_opened(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "1.json").write_text('{"kind": "cancel"}')
    run = tmp_path / "run"
    run.mkdir()
    (run / FOLDER).symlink_to(elsewhere)
    assert take_commands(run) == []
    with pytest.raises(JournalError):
        post_command(run, {"kind": "cancel"})
    assert (elsewhere / "1.json").exists()
