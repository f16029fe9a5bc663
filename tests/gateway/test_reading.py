"""What gateway.toml says of a model, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from centuria.errors import JobError
from centuria.gateway.reading import read_gateway
from centuria.gateway.settings import Deployment


def model(folder: Path, text: str) -> Deployment:
    (folder / "gateway.toml").write_text(f'[[model]]\nname = "m"\n{text}\n')
    ((found,),) = read_gateway(folder / "gateway.toml", {}, rehearse=True).models.values()
    return found


@pytest.mark.parametrize("place", ['base_url = "http://127.0.0.1:9/v1"', 'provider = "openai"'])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_name_of_a_limit_that_is_written_holds_whatever_the_provider_obeys(
    tmp_path: Path, place: str, name: str
) -> None:
    assert model(tmp_path, f'{place}\nlimit_field = "{name}"').endpoint.limit_field == name


@pytest.mark.parametrize(
    ("place", "name"),
    [('base_url = "http://127.0.0.1:9/v1"', "max_tokens"), ('provider = "openai"', "max_completion_tokens")],
)
def test_the_name_of_a_limit_is_the_providers_where_none_is_written(tmp_path: Path, place: str, name: str) -> None:
    assert model(tmp_path, place).endpoint.limit_field == name


def test_a_limit_by_another_name_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="limit_field") as caught:
        model(tmp_path, 'limit_field = "max_output"')
    assert "max_completion_tokens" in f"{caught.value} {caught.value.remedy}"


def test_a_slip_in_a_model_is_told_with_the_model_that_it_is_in(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        model(tmp_path, 'base_url = "http://127.0.0.1:9/v1"\n[[model]]\nname = "n"\nprovidr = "openai"')
    assert "[[model]] number 2" in f"{caught.value} {caught.value.remedy}"
