"""Slips of a newcomer's pen, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from centuria.errors import CenturiaError, ProviderError
from centuria.gateway.problems import Problem
from centuria.gateway.reading import read_gateway
from centuria.gateway.tools.manifest import read_entry
from centuria.gateway.web import Reply, Request, Route, Router


async def answer(request: Request) -> Reply:
    return Reply.of({})


ROUTER = Router([Route("POST", "/v1/chat/completions", answer)], [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[model]\nname = "m"\n', "Write [[model]]."),
        ('[[model]]\nname = "m"\napi_key = "sk-secret-0123"\n', 'Write key_env = "NAME"'),
    ],
)
def test_a_model_written_as_elsewhere_is_refused_with_what_to_write_here(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "gateway.toml").write_text(text)
    with pytest.raises(CenturiaError) as caught:
        read_gateway(tmp_path / "gateway.toml", {})
    assert said in caught.value.remedy
    assert "sk-secret" not in str(caught.value) + caught.value.remedy


def test_a_file_without_models_and_a_key_says_how_to_go_without_a_key(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text("")
    with pytest.raises(ProviderError) as caught:
        read_gateway(tmp_path / "gateway.toml", {})
    assert "--rehearse" in caught.value.remedy
    assert read_gateway(tmp_path / "gateway.toml", {}, rehearse=True).models


def test_a_wrong_method_is_told_the_right_one() -> None:
    with pytest.raises(Problem, match="GET is not for this address: use POST") as caught:
        ROUTER.match("GET", "/v1/chat/completions")
    assert (caught.value.status, caught.value.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize(("path", "supported"), [("/v1/embeddings", False), ("/v1/files/f-1", False), ("/v1/x", True)])
def test_what_openais_api_has_besides_is_said_to_be_unsupported(path: str, supported: bool) -> None:
    with pytest.raises(Problem) as caught:
        ROUTER.match("POST", path)
    assert caught.value.status == 404
    assert ("not supported" in caught.value.message) is not supported


def test_a_tool_without_a_name_is_told_that_it_needs_one() -> None:
    with pytest.raises(Problem, match="needs a `name`"):
        read_entry({"tool": "web_search"}, "tools[0]")
