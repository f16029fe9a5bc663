"""Templates: what is replaced, what is left alone, and what is refused with the nearest right name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.core.templates import fill, fill_all, find_json, placeholders
from centuria.errors import JobError

ROW = {"Name": "NVIDIA", "Market Cap": "5", "52 Week Low": "86.62", "calc": {"rows": [{"Price": "1.5"}]}}


def test_a_placeholder_takes_the_value_of_its_column() -> None:
    assert fill("{Name}: {Market Cap}, {52 Week Low}", ROW) == "NVIDIA: 5, 86.62"


def test_a_path_leads_into_results_of_tools() -> None:
    assert fill("{calc.rows.0.Price}", ROW) == "1.5"


def test_json_in_a_prompt_stays_what_it_is() -> None:
    prompt = 'Answer like {"name": "x", "list": [1]} and {\n "a": 1 }'
    assert fill(prompt, ROW) == prompt
    assert placeholders(prompt) == ()


def test_doubled_braces_are_braces() -> None:
    assert fill("{{Name}} {Name}", ROW) == "{Name} NVIDIA"


def test_a_value_is_never_read_as_a_template_again() -> None:
    assert fill("{a}", {"a": "{b}", "b": "secret"}) == "{b}"


def test_an_unknown_name_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(JobError, match=r"\{Nmae\}.*Did you mean \{Name\}"):
        fill("{Nmae}", ROW)


def test_a_string_that_is_one_placeholder_keeps_the_type_of_the_value() -> None:
    assert fill_all({"where": ["{calc.rows}", "{Name}!"]}, ROW) == {"where": [[{"Price": "1.5"}], "NVIDIA!"]}


def test_a_value_can_be_inserted_as_json() -> None:
    assert json.loads(fill("{calc|json}", ROW)) == ROW["calc"]


@given(st.text())
def test_any_text_is_filled_or_refused_by_name(template: str) -> None:
    try:
        fill(template, ROW)
    except JobError as error:
        assert error.remedy


@given(st.dictionaries(st.text(), st.integers()), st.sampled_from(["{}", "```json\n{}\n```", "Here you are: {} Done."]))
def test_json_is_found_however_a_model_wraps_it(value: dict[str, int], wrapping: str) -> None:
    assert find_json(wrapping.replace("{}", json.dumps(value), 1)) == value


def test_text_without_json_and_json_too_deep_to_read_are_no_json() -> None:
    assert find_json("no braces") is None
    assert find_json("[" * 100_000) is None
