"""The models of a comparison as a user writes them: by name, at a provider, at a URL, or in the job file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.config import ModelChoice, Overrides, contenders, load_job, overridden, pinned, reference_of, resolve
from centuria.errors import CenturiaError, ConfigurationError, JobError, ProviderError
from tests.promises.kit import write_job

JOB = ModelChoice()
KEY = {"OPENAI_API_KEY": "sk-Zm9vYmFyYmF6cXV4MDEyMzQ1"}


def one(text: str, job: ModelChoice = JOB, **named: ModelChoice) -> ModelChoice:
    (found,) = contenders([text], job, named)
    return found.choice


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("kimi-k2.6", ModelChoice(name="kimi-k2.6")),
        (" kimi-k2.6 ", ModelChoice(name="kimi-k2.6")),
        ("qwen3:4b", ModelChoice(name="qwen3:4b")),
        ("maker/model", ModelChoice(name="maker/model")),
        ("openai:gpt-4.1", ModelChoice(name="gpt-4.1", provider="openai")),
        ("Ollama:qwen3:4b", ModelChoice(name="qwen3:4b", provider="ollama")),
        ("openrouter:maker/model:free", ModelChoice(name="maker/model:free", provider="openrouter")),
        ("http://127.0.0.1:8080/v1#a/b", ModelChoice(name="a/b", base_url="http://127.0.0.1:8080/v1")),
    ],
)
def test_each_form_is_read(text: str, choice: ModelChoice) -> None:
    assert one(text) == choice


def test_a_provider_before_a_model_means_the_same_to_the_flag_model_as_to_a_comparison(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('[job]\nprompt = "x"\n[model]\nname = "kimi-k2.5"\nprovider = "moonshot"\nkey_env = "MINE"\n')
    loaded = load_job(path, Overrides(model="openai:gpt-4.1"), env={})
    for choice in (loaded.model, overridden(loaded.job, JOB, Overrides(model="openai:gpt-4.1"))[1]):
        assert resolve(choice, KEY) == resolve(one("openai:gpt-4.1"), KEY)
    assert load_job(path, Overrides(model="kimi-k2.6"), env={}).model == ModelChoice(
        "kimi-k2.6", "moonshot", None, "MINE"
    )


def test_a_name_of_the_job_file_wins_over_all_other_readings() -> None:
    mine = ModelChoice(name="qwen3", base_url="http://127.0.0.1:1/v1", key_env="MINE")
    assert one("openai:gpt-4.1", **{"openai:gpt-4.1": mine}) == mine


def test_a_bare_name_is_at_the_job_s_own_address_as_with_the_flag_model() -> None:
    job = ModelChoice("a", "custom", "http://127.0.0.1:1/v1", "MINE", 8192, sampling={"temperature": 0.1})
    found = one("gpt-4.1", job)
    assert found == ModelChoice(
        "gpt-4.1", "custom", "http://127.0.0.1:1/v1", "MINE", 8192, sampling={"temperature": 0.1}
    )


def test_a_bare_name_of_another_maker_is_not_asked_of_the_job_s() -> None:
    job = ModelChoice("kimi-k2.5", "moonshot", key_env="MOONSHOT_API_KEY", sampling={"thinking": {"type": "disabled"}})
    assert one("gpt-4.1", job) == ModelChoice("gpt-4.1")
    assert one("kimi-k2.6", job).provider == "moonshot"
    assert one("brand-new", job).provider == "moonshot"
    gateway = ModelChoice("kimi-k2.5", "openrouter")
    assert one("gpt-4.1", gateway).provider == "openrouter"


def test_an_address_of_its_own_has_nothing_of_the_job_s() -> None:
    job = ModelChoice("a", "custom", "http://127.0.0.1:1/v1", "MINE", sampling={"temperature": 0.1})
    assert one("openai:gpt-4.1", job) == ModelChoice("gpt-4.1", "openai")
    assert one("http://127.0.0.1:2/v1#b", job) == ModelChoice("b", base_url="http://127.0.0.1:2/v1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("openai:", "openai:MODEL"),
        ("http://127.0.0.1:8080/v1", "#MODEL"),
        ("http://127.0.0.1:8080/v1#", "#MODEL"),
        ("two words", "URL#NAME"),
        ("", "commas between"),
    ],
)
def test_what_names_no_model_is_refused_with_the_way_to_write_it(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        contenders([text], JOB)
    assert said in caught.value.remedy


def test_a_password_in_a_url_is_in_no_label_and_no_error() -> None:
    (found,) = contenders(["https://me:hunter2@models.example.com/v1#m"], JOB)
    assert found.label == "m@models.example.com"
    with pytest.raises(ProviderError) as caught:
        pinned(found.choice, {})
    assert "hunter2" not in str(caught.value)


def test_labels_differ_also_for_a_model_that_is_named_twice() -> None:
    found = contenders(["a", "b", "a", "a"], JOB)
    assert [one.label for one in found] == ["a", "b", "a (2)", "a (3)"]


def test_without_names_all_of_the_job_file_s_models_run_and_none_is_refused() -> None:
    named = {"x": ModelChoice("m"), "y": ModelChoice("n")}
    assert [one.label for one in contenders([], JOB, named)] == ["x", "y"]
    with pytest.raises(JobError, match="No models") as caught:
        contenders([], JOB)
    assert "--models" in caught.value.remedy and "[compare.models.NAME]" in caught.value.remedy
    with pytest.raises(JobError, match="at most 50"):
        contenders(["a"] * 51, JOB)


def test_the_reference_is_the_first_or_the_one_that_is_said() -> None:
    found = contenders(["a", "http://127.0.0.1:1/v1#b"], JOB)
    assert reference_of(None, found) == "a"
    assert reference_of("b@127.0.0.1:1", found) == reference_of("http://127.0.0.1:1/v1#b", found) == "b@127.0.0.1:1"
    with pytest.raises(JobError, match="none of the models"):
        reference_of("c", found)


def test_what_is_pinned_means_the_same_in_another_environment() -> None:
    found = pinned(one("openai:gpt-4.1"), {**KEY, "CENTURIA_BASE_URL": "http://127.0.0.1:1/v1"})
    assert (found.base_url, found.provider) == ("https://api.openai.com/v1", "openai")
    assert pinned(found, {"CENTURIA_BASE_URL": "http://127.0.0.1:1/v1", "CENTURIA_MODEL": "other"}) == found
    by_environment = pinned(one("m"), {"CENTURIA_BASE_URL": "http://127.0.0.1:1/v1"})
    assert by_environment.base_url == "http://127.0.0.1:1/v1" and by_environment.provider == "custom"
    assert pinned(by_environment, {}) == by_environment


def test_the_tables_of_a_job_file_are_models(tmp_path: Path) -> None:
    models = {"local": {"name": "m", "base_url": "http://127.0.0.1:1/v1", "key_env": "MINE"}}
    loaded = load_job(write_job(tmp_path, "http://127.0.0.1:9/v1", rows=1, compare={"models": models}), env={})
    assert loaded.compare == {"local": ModelChoice("m", base_url="http://127.0.0.1:1/v1", key_env="MINE")}
    wrong = write_job(tmp_path, "http://127.0.0.1:9/v1", rows=1, compare={"models": {"x": {"base": "y"}}})
    with pytest.raises(JobError, match="has no key `base`"):
        load_job(wrong, env={})


@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_text_is_read_or_refused_with_a_remedy(texts: list[str]) -> None:
    try:
        found = contenders(texts, JOB)
    except CenturiaError as error:
        assert error.remedy
    else:
        assert len({one.label for one in found}) == len(found) == len(texts)
