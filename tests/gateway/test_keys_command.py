"""`centuria keys` and `centuria usage`: what an operator types, and what comes back."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from centuria.cli import main
from centuria.gateway.keys import digest_of
from centuria.gateway.ports import AttemptRow, Key
from centuria.gateway.store.sqlite import SqliteStore
from centuria.messages import DOLLAR
from tests.gateway.store_suite import attempt

CENT = DOLLAR // 100


class Command:
    """Runs the command in a folder of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys = capsys
        self.folder = folder
        self.store = folder / "gateway.db"

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Its output and what it says beside it."""
        self._capsys.readouterr()
        assert main(arguments) == code
        out, said = self._capsys.readouterr()
        return out, said

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        out, _ = self.run(*arguments, "--json")
        return [json.loads(line) for line in out.splitlines()]

    def find(self, token: str) -> Key | None:
        async def work() -> Key | None:
            store = SqliteStore(self.store)
            found = await store.find_key(digest_of(token))
            await store.aclose()
            return found

        return asyncio.run(work())

    def write(self, rows: Sequence[AttemptRow]) -> None:
        async def work() -> None:
            store = SqliteStore(self.store)
            await store.write("g", rows)
            await store.aclose()

        asyncio.run(work())


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(capsys, tmp_path)


def test_a_new_keys_token_is_all_of_standard_output_and_works(command: Command) -> None:
    out, said = command.run(
        *("keys", "add", "ada", "--budget", "20", "--rpm", "600", "--tpm", "9000"),
        *("--models", "kimi-k2.5, gpt", "--tools", "web_search", "--admin"),
    )
    token = out.strip()
    assert re.fullmatch(r"ck-[0-9a-zA-Z]{40}", token)
    key = command.find(token)
    assert key is not None
    assert (key.name, key.budget, key.rpm, key.tpm, key.admin) == ("ada", 20 * DOLLAR, 600, 9000, True)
    assert (key.models, key.tools) == ({"kimi-k2.5", "gpt"}, {"web_search"})
    assert "OPENAI_API_KEY" in said
    assert "shown once" in said
    assert token not in said


def test_a_key_without_flags_has_no_limits(command: Command) -> None:
    [told] = command.lines("keys", "add", "ada")
    key = command.find(told["token"])
    assert key is not None
    assert (key.budget, key.rpm, key.tpm, key.models, key.tools, key.admin) == (None,) * 5 + (False,)
    assert key == replace(Key(key.id, "ada"), created=key.created)
    [told] = command.lines("keys", "add", "bob", "--budget", "none", "--tools", "")
    key = command.find(told["token"])
    assert key is not None
    assert (key.budget, key.tools) == (None, frozenset())


def test_no_token_is_in_the_file_or_in_a_list(command: Command) -> None:
    [told] = command.lines("keys", "add", "ada")
    secret = told["token"][3:]
    listed = "".join(command.run("keys", "list") + command.run("keys", "list", "--json"))
    assert "ada" in listed
    assert secret not in listed
    assert all(secret.encode() not in path.read_bytes() for path in command.folder.iterdir())


def test_keys_are_listed_with_what_they_spent(command: Command) -> None:
    [ada] = command.lines("keys", "add", "ada", "--budget", "0.5", "--rpm", "600", "--models", "kimi")
    command.run("keys", "add", "bob")
    command.write([attempt("r1", ada["id"], 7 * CENT, held=CENT)])
    out, _ = command.run("keys", "list")
    header, first, second = out.splitlines()
    assert header.split() == ["name", "budget", "spent", "held", "limits", "created", "revoked"]
    assert first.split()[:4] == ["ada", "$0.500", "$0.070", "$0.010"]
    assert "600 rpm; models kimi" in first
    assert second.split()[:5] == ["bob", "none", "$0.00", "$0.00", "-"]
    told = command.lines("keys", "list")
    assert [(line["name"], line["budget_usd"], line["spent_usd"], line["held_usd"]) for line in told] == [
        ("ada", 0.5, 0.07, 0.01),
        ("bob", None, 0.0, 0.0),
    ]
    assert "token" not in told[0]


def test_a_revoked_key_stays_listed_and_its_name_is_free(command: Command) -> None:
    command.run("keys", "add", "ada")
    _, said = command.run("keys", "add", "ada", code=2)
    assert "There is a key called 'ada' already." in said
    assert "centuria keys revoke ada" in said
    _, said = command.run("keys", "revoke", "ada")
    assert "within 30 seconds" in said
    _, said = command.run("keys", "revoke", "ada", code=2)
    assert "There is no key called 'ada'." in said
    command.run("keys", "add", "ada")
    assert [line["revoked"] is None for line in command.lines("keys", "list")] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["", "--budget", "1"], "cannot be a key's name"),
        (["a\nb"], "cannot be a key's name"),
        (["local"], "cannot be a key's name"),
        (["x" * 101], "cannot be a key's name"),
        (["ada", "--budget", "0"], "--budget is 0"),
        (["ada", "--budget", "-3"], "--budget must be more than 0"),
        (["ada", "--budget", "nan"], "--budget must be more than 0"),
        (["ada", "--budget", "1e12"], "at most 9,000,000 dollars"),
        (["ada", "--rpm", "0"], "--rpm is 0"),
        (["ada", "--tpm", "-1"], "--tpm is -1"),
        (["ada", "--models", ""], "--models '' has an empty name"),
        (["ada", "--tools", "a,,b"], "--tools 'a,,b' has an empty name"),
        (["ada", "--store", "redis://x"], "no store for redis:// URLs"),
        (["ada", "--config", "none.toml"], "none.toml"),
    ],
)
def test_what_cannot_be_is_said_with_a_remedy_and_makes_no_store(
    command: Command, arguments: list[str], said: str
) -> None:
    _, told = command.run("keys", "add", *arguments, code=2)
    assert said in told
    assert len(told.splitlines()) == 2
    assert not command.store.exists()


@pytest.mark.parametrize("arguments", [["keys", "list"], ["keys", "revoke", "ada"], ["usage"]])
def test_who_only_looks_makes_no_store(command: Command, arguments: list[str]) -> None:
    _, said = command.run(*arguments, code=2)
    assert "There is no store gateway.db." in said
    assert "centuria keys add NAME" in said
    assert not command.store.exists()


def test_the_store_is_the_one_that_the_gateways_file_names(command: Command) -> None:
    folder = command.folder / "etc"
    folder.mkdir()
    config = folder / "gateway.toml"
    config.write_text('[gateway]\nstore = "keys.db"\n')
    command.run("keys", "add", "ada", "--config", str(config))
    assert [path.name for path in folder.iterdir() if path.suffix == ".db"] == ["keys.db"]
    assert [line["name"] for line in command.lines("keys", "list", "--store", str(folder / "keys.db"))] == ["ada"]


def test_a_budget_is_changed_for_a_key_that_works_and_has_one(command: Command) -> None:
    command.run("keys", "add", "ada", "--budget", "5")
    command.run("keys", "add", "free")
    _, said = command.run("keys", "budget", "ada", "7.50")
    assert "the budget of ada is $7.50: $0.00 spent, $0.00 held" in said
    assert "$7.50 left" in said
    assert [line["budget_usd"] for line in command.lines("keys", "list")] == [7.5, None]
    _, said = command.run("keys", "budget", "free", "1", code=2)
    assert "has no budget" in said and "keys add NAME --budget" in said
    _, said = command.run("keys", "budget", "nobody", "1", code=2)
    assert "There is no key called 'nobody'" in said
    _, said = command.run("keys", "budget", "ada", "none", code=2)
    assert "cannot be taken away" in said
    command.run("keys", "revoke", "ada")
    _, said = command.run("keys", "budget", "ada", "1", code=2)
    assert "There is no key called 'ada'" in said


def test_keys_are_made_and_revoked_while_a_gateway_works(command: Command) -> None:
    command.run("keys", "add", "ada")

    async def work() -> SqliteStore:
        store = SqliteStore(command.store)
        await store.start("g")
        return store

    serving = asyncio.run(work())
    command.run("keys", "add", "bob")
    command.run("keys", "revoke", "ada")
    assert [line["revoked"] is None for line in command.lines("keys", "list")] == [False, True]
    asyncio.run(serving.aclose())


# -- usage ------------------------------------------------------------------------------------------------------------

DAY = 86_400.0


@pytest.fixture
def used(command: Command) -> Command:
    ids = {name: command.lines("keys", "add", name)[0]["id"] for name in ("ada", "=bob")}
    plain = attempt("r", ids["ada"], 2 * CENT)._replace(prompt=1_000, cached=200, output=50)
    command.write(
        [
            plain._replace(request="r1", at=DAY * 10),
            plain._replace(request="r1", at=DAY * 10, attempt=2, cost=0, held=CENT),
            plain._replace(request="r2", at=DAY * 11, model="gpt"),
            plain._replace(request="r3", at=DAY * 12, key=ids["=bob"]),
            plain._replace(request="r4", at=DAY * 12, key="local"),
        ]
    )
    return command


def test_usage_is_a_table_with_a_total(used: Command) -> None:
    out, _ = used.run("usage")
    assert [line.split() for line in out.splitlines()] == [
        ["key", "model", "requests", "attempts", "prompt", "cached", "output", "cost", "held"],
        ["=bob", "kimi", "1", "1", "1,000", "200", "50", "$0.020", "$0.00"],
        ["ada", "gpt", "1", "1", "1,000", "200", "50", "$0.020", "$0.00"],
        ["ada", "kimi", "1", "2", "2,000", "400", "100", "$0.020", "$0.010"],
        ["local", "kimi", "1", "1", "1,000", "200", "50", "$0.020", "$0.00"],
        ["total", "4", "5", "5,000", "1,000", "250", "$0.080", "$0.010"],
    ]


def test_usage_of_one_key_by_day(used: Command) -> None:
    lines = used.lines("usage", "--key", "ada", "--by", "day")
    assert [(line["day"], line["requests"], line["cost_usd"]) for line in lines] == [
        ("1970-01-11", 1, 0.02),
        ("1970-01-12", 1, 0.02),
    ]
    assert "key" not in lines[0]


def test_usage_between_two_days_has_both_of_them(used: Command) -> None:
    lines = used.lines("usage", "--since", "1970-01-12", "--until", "1970-01-12", "--by", "key,day")
    assert [(line["key"], line["day"]) for line in lines] == [("ada", "1970-01-12")]
    assert len(used.lines("usage", "--since", "1960-01-01", "--until", "9999-12-31", "--by", "key")) == 3
    assert used.lines("usage", "--since", "1970-01-14") == []
    assert "nothing was used" in used.run("usage", "--since", "1970-01-14")[1]


def test_usage_as_csv_has_no_formula_in_it(used: Command) -> None:
    out, _ = used.run("usage", "--csv", "--by", "key")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["key"], row["prompt"], row["cost_usd"], row["held_usd"]) for row in rows] == [
        ("'=bob", "1000", "0.020000000000", "0.000000000000"),
        ("ada", "3000", "0.040000000000", "0.010000000000"),
        ("local", "1000", "0.020000000000", "0.000000000000"),
    ]


def test_the_usage_of_a_name_that_was_given_twice_is_that_of_both_keys(used: Command) -> None:
    used.run("keys", "revoke", "ada")
    [again] = used.lines("keys", "add", "ada")
    used.write([attempt("r9", again["id"], CENT)])
    [line] = used.lines("usage", "--key", "ada", "--by", "key")
    assert line["cost_usd"] == 0.05


async def killed(command: Command, key: str, amount: int) -> None:
    """A gateway leases this much of the key and ends without a word; another one starts."""
    for gateway in ("killed", "next"):
        store = SqliteStore(command.folder / "gateway.db")
        await store.start(gateway)
        if gateway == "killed":
            await store.extend_lease(gateway, key, amount, amount)
        await store.aclose()


def test_what_is_held_for_leases_of_a_killed_gateway_is_said_apart_and_explains_the_balance(used: Command) -> None:
    [eve] = used.lines("keys", "add", "eve", "--budget", "5")
    used.write([attempt("r5", eve["id"], held=2 * CENT, at=DAY * 12)])
    asyncio.run(killed(used, eve["id"], 30 * CENT))
    told = next(line for line in used.lines("keys", "list") if line["name"] == "eve")
    assert told["held_usd"] == 0.32

    assert used.run("usage")[0].splitlines()[-1].endswith("ended without a word: eve $0.300")
    [line] = used.lines("usage", "--key", "eve", "--by", "key")
    assert (line["held_usd"], line["held_leases_usd"]) == (0.02, 0.3)
    rows = list(csv.DictReader(io.StringIO(used.run("usage", "--csv")[0])))
    assert [(row["key"], row["model"], row["requests"]) for row in rows if float(row["held_leases_usd"])] == [
        ("eve", "", "0")
    ]
    assert all(line["held_leases_usd"] == 0 for line in used.lines("usage", "--since", "1970-01-01"))
    assert "ended without a word" not in used.run("usage", "--key", "ada")[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--by", "colour"], "--by 'colour' is unknown"),
        (["--since", "yesterday"], "--since 'yesterday' is not a day"),
        (["--since", "1970-01-02", "--until", "1970-01-01"], "--until is before --since"),
        (["--key", "nobody"], "There is no key called 'nobody'"),
    ],
)
def test_a_wrong_question_about_usage_is_said_with_a_remedy(used: Command, arguments: list[str], said: str) -> None:
    _, told = used.run("usage", *arguments, code=2)
    assert said in told
    assert len(told.splitlines()) == 2


def test_a_store_in_a_folder_that_is_not_there_is_an_error_and_no_new_folder(command: Command) -> None:
    where = command.folder / "no" / "such" / "gateway.db"
    _, said = command.run("keys", "add", "ada", "--store", str(where), code=2)
    assert f"there is no folder {where.parent}" in said
    assert not (command.folder / "no").exists()


def test_a_store_that_is_a_folder_is_said_by_its_whole_name(command: Command) -> None:
    for name in (".", str(command.folder)):
        _, said = command.run("keys", "add", "ada", "--store", name, code=2)
        assert "is a folder" in said and "The store  " not in said


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_is_none_is_said_in_a_sentence(command: Command, port: str) -> None:
    _, said = command.run("serve", "--rehearse", "--port", port, code=2)
    assert said.startswith(f"centuria: There is no port {port}.") and "Traceback" not in said


def test_small_money_is_told_in_decimals_and_never_in_powers_of_ten(command: Command) -> None:
    [ada] = command.lines("keys", "add", "ada")
    command.write([attempt("r1", ada["id"], 7)])
    for form in ("--json", "--csv"):
        assert "0.000000000007" in command.run("usage", form)[0]
    [line] = command.lines("usage", "--by", "key")
    assert line["cost_usd"] == 7e-12


def test_a_new_key_is_shown_with_the_address_and_the_store_that_it_is_for(command: Command) -> None:
    config = command.folder / "my gateway.toml"
    config.write_text(
        '[gateway]\nhost = "0.0.0.0"\nport = 9001\nstore = "keys.db"\n'
        # What a gateway needs to start is not needed for its keys.
        '[tools.web]\nbuiltin = "web_search"\n[[model]]\nname = "m"\nprovider = "moonshot"\n'
    )
    _, said = command.run("keys", "add", "ada lovelace", "--config", str(config))
    assert "OPENAI_BASE_URL=http://127.0.0.1:9001/v1" in said
    assert f"centuria keys revoke 'ada lovelace' --config '{config}'" in said
    _, said = command.run("keys", "add", "bob", "--store", "other.db")
    assert "centuria keys revoke bob --store other.db" in said
