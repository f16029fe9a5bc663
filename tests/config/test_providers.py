"""Which provider, URL, model and key; and everything about them that is refused before the first request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.config import PRESETS, ModelChoice, NoKey, resolve
from centuria.config.presets import BY_NAME, KEY_OWNERS
from centuria.errors import ProviderError
from centuria.settings import Endpoint

KEY = "sk-Zm9vYmFyYmF6cXV4MDEyMzQ1"
KEYS = {
    "anthropic": "sk-ant-api03-Zm9vYmFyYmF6",
    "openrouter": "sk-or-v1-Zm9vYmFyYmF6cXV4",
    "gemini": "AIzaSyZm9vYmFyYmF6cXV4MDEyMzQ1",
}


def endpoint(choice: ModelChoice, **env: str) -> Endpoint:
    found = resolve(choice, env)
    assert isinstance(found, Endpoint), found
    return found


def refused(choice: ModelChoice, **env: str) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        resolve(choice, env)
    error = caught.value
    assert error.remedy
    for value in env.values():
        if value.strip() and not value.startswith("http"):
            assert value not in str(error), "a key was shown"
            assert value[-4:] not in str(error), "a part of a key was shown"
    return error


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if preset.model], ids=lambda preset: preset.name)
def test_a_preset_is_complete_with_its_key_alone(preset: Any) -> None:
    key = KEYS.get(preset.name, KEY)
    found = endpoint(ModelChoice(), **{preset.keys[0]: key})
    assert (found.provider, found.base_url, found.model) == (preset.name, preset.base_url, preset.model)
    assert found.key is not None
    assert found.key.value == key
    assert (found.context, found.thinks, found.limit_field) == (preset.context, preset.thinks, preset.limit_field)
    assert found.sampling == {}, "nothing is sent that was not asked for"
    assert key not in repr(found)


@pytest.mark.parametrize(
    ("choice", "env", "provider"),
    [
        (ModelChoice(provider="openai"), {"MOONSHOT_API_KEY": KEY, "OPENAI_API_KEY": KEY}, "openai"),
        (
            ModelChoice(base_url="https://api.deepseek.com"),
            {"DEEPSEEK_API_KEY": KEY, "MOONSHOT_API_KEY": KEY},
            "deepseek",
        ),
        (ModelChoice(base_url="https://api.moonshot.cn/v1/"), {"MOONSHOT_API_KEY": KEY}, "moonshot"),
        (ModelChoice(name="kimi-k2.5"), {"OPENAI_API_KEY": KEY, "MOONSHOT_API_KEY": KEY}, "moonshot"),
        (ModelChoice(name="kimi-k2.5"), {"OPENAI_API_KEY": KEY, "HOLYSHEEP_API_KEY": KEY}, "holysheep"),
        (ModelChoice(name="claude-sonnet-4-5"), {"HOLYSHEEP_API_KEY": KEY}, "holysheep"),
        (ModelChoice(name="gpt-4.1"), {"HOLYSHEEP_API_KEY": KEY, "OPENAI_API_KEY": KEY}, "openai"),
        (ModelChoice(name="moonshotai/kimi-k2.5"), {"OPENROUTER_API_KEY": KEYS["openrouter"]}, "openrouter"),
        (ModelChoice(name="qwen3:4b"), {}, "ollama"),
        (ModelChoice(name="openai:gpt-4.1"), {"MOONSHOT_API_KEY": KEY, "OPENAI_API_KEY": KEY}, "openai"),
        (
            ModelChoice(name="OpenAI:ft:gpt-4o-mini:house::x1"),
            {"CENTURIA_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": KEY},
            "openai",
        ),
        (ModelChoice(), {"CENTURIA_MODEL": "openai:gpt-4.1", "OPENAI_API_KEY": KEY}, "openai"),
        (ModelChoice(name="strange"), {"DEEPSEEK_API_KEY": KEY}, "deepseek"),
        (ModelChoice(), {"OPENAI_API_KEY": KEY, "HOLYSHEEP_API_KEY": KEY}, "holysheep"),
        (ModelChoice(), {"CENTURIA_MODEL": "gpt-4.1", "OPENAI_API_KEY": KEY, "MOONSHOT_API_KEY": KEY}, "openai"),
        (ModelChoice(key_env="OPENAI_API_KEY"), {"OPENAI_API_KEY": KEY, "MOONSHOT_API_KEY": KEY}, "openai"),
        (ModelChoice(), {"MOONSHOT_API_KEY": "", "OPENAI_API_KEY": KEY}, "openai"),
    ],
)
def test_the_choice_wins_then_the_url_then_the_model_then_the_first_key(
    choice: ModelChoice, env: dict[str, str], provider: str
) -> None:
    assert endpoint(choice, **env).provider == provider


def test_without_any_key_the_run_is_a_rehearsal_that_says_what_is_missing() -> None:
    found = resolve(ModelChoice(), {})
    assert isinstance(found, NoKey)
    assert (found.endpoint.provider, found.endpoint.model, found.endpoint.key) == ("moonshot", "kimi-k2.5", None)
    assert found.text == "There is no key for Moonshot: MOONSHOT_API_KEY is not set."
    assert found.remedy.startswith("Set MOONSHOT_API_KEY (from https://platform.moonshot.ai")
    other = resolve(ModelChoice(name="gpt-4.1", key_env="MY_KEY", provider="openai"), {"OPENAI_API_KEY": KEY})
    assert isinstance(other, NoKey)
    assert other.variables == ("MY_KEY",)


def test_a_named_server_on_this_machine_needs_no_key_and_takes_any() -> None:
    local = ModelChoice(name="m", base_url="http://127.0.0.1:8000/v1")
    assert endpoint(local).key is None
    assert endpoint(local, CENTURIA_API_KEY="EMPTY").key is not None
    assert (
        endpoint(ModelChoice(name="m"), CENTURIA_BASE_URL="http://localhost:1/v1").base_url == "http://localhost:1/v1"
    )
    assert endpoint(ModelChoice(), MOONSHOT_API_KEY="k", MOONSHOT_BASE_URL="http://[::1]:9/v1").provider == "moonshot"
    remote = resolve(ModelChoice(name="m", base_url="https://llm.example.com/v1"), {})
    assert isinstance(remote, NoKey)


@pytest.mark.parametrize(
    "value",
    [
        "YOUR_HOLYSHEEP_API_KEY", "your-api-key-goes-here", "sk-...", "sk-xxxxxxxxxxxxxxxx", "xxx", "XXXX-XXXX",
        "<key>", "<YOUR KEY>", "${HOLYSHEEP_API_KEY}", "{{ key }}", "changeme", "change_me_please", "placeholder",
        "sk-your-key-1234", "insert-key-here", "todo", "none", "null", "test", "dummy", "api_key", "apikey",
        "sk-test", "********", "replace_me", "[key]", "…", "undefined", "short",
    ],
)  # fmt: skip
def test_a_placeholder_is_refused_with_where_to_get_a_key(value: str) -> None:
    with pytest.raises(ProviderError) as caught:
        resolve(ModelChoice(), {"HOLYSHEEP_API_KEY": value})
    assert caught.value.message.startswith("HOLYSHEEP_API_KEY ")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "is set, but empty"),
        ("  \t ", "is set, but empty"),
        (KEY + "\n", "a space, a line break"),
        (KEY[:9] + " " + KEY[9:], "a space, a line break"),
        (KEY + "é", "a space, a line break"),
        ("Bearer " + KEY, "begins with the word Bearer"),
        (f'"{KEY}"', "has quotes around the key"),
    ],
)
def test_a_key_that_copying_broke_is_refused(value: str, why: str) -> None:
    assert why in refused(ModelChoice(provider="moonshot"), MOONSHOT_API_KEY=value).message


def test_an_empty_variable_alone_is_a_mistake_and_no_wish_for_a_rehearsal() -> None:
    assert refused(ModelChoice(), OPENAI_API_KEY="").message == "OPENAI_API_KEY is set, but empty."


@pytest.mark.parametrize(("prefix", "owner"), list(KEY_OWNERS.items()))
def test_a_key_with_the_shape_of_another_provider_is_refused_by_name(prefix: str, owner: str) -> None:
    error = refused(ModelChoice(provider="moonshot"), MOONSHOT_API_KEY=f"{prefix}Zm9vYmFyYmF6cXV4")
    assert error.message == f"The key in MOONSHOT_API_KEY has the shape of {owner}'s, but would be sent to Moonshot."


def test_a_key_without_its_providers_own_shape_is_refused() -> None:
    assert "does not begin with sk-ant-" in refused(ModelChoice(provider="anthropic"), ANTHROPIC_API_KEY=KEY).message
    assert "does not begin with sk-or-" in refused(ModelChoice(provider="openrouter"), OPENROUTER_API_KEY=KEY).message


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        (
            ModelChoice(provider="holysheep", base_url="https://api.openai.com/v1"),
            "The base URL belongs to OpenAI, but the provider is HolySheep.",
        ),
        (
            ModelChoice(provider="custom", base_url="https://api.anthropic.com/v1"),
            "The base URL belongs to Anthropic, but the provider is your own server.",
        ),
        (
            ModelChoice(base_url="https://api.holysheep.ai/v1", key_env="MOONSHOT_API_KEY"),
            "The key in MOONSHOT_API_KEY belongs to Moonshot, but the base URL to HolySheep.",
        ),
        (
            ModelChoice(provider="moonshot", base_url="https://proxy.example.com/v1"),
            "The key of Moonshot would be sent to proxy.example.com, which does not belong to Moonshot.",
        ),
        (
            ModelChoice(base_url="https://proxy.example.com/v1", key_env="MOONSHOT_API_KEY"),
            "The key of Moonshot would be sent to proxy.example.com, which does not belong to Moonshot.",
        ),
    ],
)
def test_a_key_never_goes_to_another_providers_url(choice: ModelChoice, sentence: str) -> None:
    error = refused(choice, MOONSHOT_API_KEY=KEY, HOLYSHEEP_API_KEY=KEY + "2", CENTURIA_API_KEY=KEY + "3")
    assert error.message == sentence


def test_a_url_variable_of_another_provider_is_refused_by_its_name() -> None:
    error = refused(ModelChoice(), MOONSHOT_API_KEY=KEY, MOONSHOT_BASE_URL="https://api.openai.com/v1")
    assert error.message == "MOONSHOT_BASE_URL belongs to OpenAI, but the provider is Moonshot."


def test_a_proxy_is_allowed_when_its_key_is_named_on_purpose() -> None:
    choice = ModelChoice(
        provider="custom", name="m", base_url="https://proxy.example.com/v1", key_env="MOONSHOT_API_KEY"
    )
    assert endpoint(choice, MOONSHOT_API_KEY=KEY).provider == "custom"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("https://api.moonshot.ai/v1/chat/completions", "ends with /chat/completions, which is added"),
        ("https://api.moonshot.ai/v1/chat/completions/", "ends with /chat/completions, which is added"),
        ("https://api.moonshot.ai/v1/models", "ends with /models, which is added"),
        ("https://api.moonshot.ai", "has the wrong path for Moonshot."),
        ("https://api.moonshot.ai/anthropic", "has the wrong path for Moonshot."),
        ("https://openrouter.ai/v1", "has the wrong path for OpenRouter."),
        (
            "https://api.moonshot.io/v1",
            "names the host api.moonshot.io, which is nearly, but not quite, api.moonshot.ai.",
        ),
        ("https://api.holysheep.al/v1", "nearly, but not quite, api.holysheep.ai."),
        ("http://api.moonshot.ai/v1", "is plain http to the public host api.moonshot.ai"),
        ("http://8.8.8.8/v1", "is plain http to the public host 8.8.8.8"),
        ("api.moonshot.ai/v1", "must begin with https://"),
        ("ftp://api.moonshot.ai/v1", "must begin with https://"),
        ("https:///v1", "must begin with https://"),
        ("https://user:hunter2@llm.example.com/v1", "holds a user name or password."),
        ("https://llm.example.com/v1?key=hunter2", "holds `?` or `#`."),
        ("https://llm.example.com/v1#hunter2", "holds `?` or `#`."),
        ("https://llm.example.com/v1?", "holds `?` or `#`."),
        ("https://llm.example.com :443/v1", "holds spaces"),
        ("https://llm.example.com/v1\n", "holds spaces"),
        ("https://аpi.moonshot.ai/v1", "holds spaces or characters that no URL has"),
        ("https://[::1/v1", "is not a URL."),
        ("https://llm.example.com:99999/v1", "is not a URL."),
    ],
)
def test_a_base_url_that_cannot_work_is_refused(url: str, sentence: str) -> None:
    error = refused(ModelChoice(name="m", base_url=url), MOONSHOT_API_KEY=KEY)
    assert error.message.startswith("The base URL ")
    assert sentence in error.message
    assert "hunter2" not in str(error)


def test_the_remedy_for_a_route_in_the_url_is_the_url_without_it() -> None:
    error = refused(ModelChoice(base_url="https://api.holysheep.ai/v1/chat/completions"))
    assert error.remedy == "Write https://api.holysheep.ai/v1."


@pytest.mark.parametrize(
    "host", ["10.0.0.5", "192.168.1.2:8000", "vllm:8000", "gpu.local", "llm.corp.internal", "[fd00::1]"]
)
def test_plain_http_is_allowed_inside_private_networks(host: str) -> None:
    choice = ModelChoice(name="m", base_url=f"http://{host}/v1")
    assert endpoint(choice, CENTURIA_API_KEY=KEY).base_url == f"http://{host}/v1"


def test_plain_http_to_a_public_host_must_be_asked_for() -> None:
    choice = ModelChoice(name="m", base_url="http://llm.example.com/v1", allow_http=True)
    assert endpoint(choice, CENTURIA_API_KEY=KEY).base_url == "http://llm.example.com/v1"


@pytest.mark.parametrize("name", [KEY, "sk-ant-x", "MOONSHOT API KEY", "", "1KEY"])
def test_a_key_written_where_its_variables_name_belongs_is_refused_unseen(name: str) -> None:
    with pytest.raises(ProviderError, match="must be the NAME of an environment variable") as caught:
        resolve(ModelChoice(key_env=name), {})
    assert not name or name not in str(caught.value)


def test_an_unknown_provider_names_the_nearest() -> None:
    assert refused(ModelChoice(provider="moonshoot")).remedy == "Did you mean `moonshot`?"


def test_a_custom_server_needs_a_url_and_a_model() -> None:
    assert "No base URL is named" in refused(ModelChoice(), CENTURIA_API_KEY=KEY).message
    assert "No model is named" in refused(ModelChoice(base_url="http://localhost:1/v1")).message
    assert "No model is named for Ollama" in refused(ModelChoice(provider="ollama")).message


@pytest.mark.parametrize(
    ("model", "context", "thinks"),
    [
        ("kimi-k2.5", 262_144, True),
        ("kimi-k2-0905-preview", 262_144, False),
        ("kimi-k3", 1_048_576, True),
        ("gpt-4.1-mini", 1_047_576, False),
        ("claude-sonnet-4-5-20250929", 200_000, False),
        ("moonshotai/kimi-k2.5", 262_144, True),
    ],
)
def test_a_models_window_and_thinking_are_known_by_its_name(model: str, context: int, thinks: bool) -> None:
    found = resolve(ModelChoice(name=model), {})
    assert isinstance(found, NoKey)
    assert (found.endpoint.context, found.endpoint.thinks) == (context, thinks)


def test_what_is_written_about_the_model_wins() -> None:
    choice = ModelChoice(name="kimi-k2.5", context=9_000, thinks=False)
    found = endpoint(choice, MOONSHOT_API_KEY=KEY)
    assert (found.context, found.thinks) == (9_000, False)
    off = ModelChoice(name="kimi-k2.5", sampling={"thinking": {"type": "disabled"}})
    assert endpoint(off, MOONSHOT_API_KEY=KEY).thinks is False


@pytest.mark.parametrize("name", ["temperature", "top_p", "presence_penalty"])
def test_a_model_with_fixed_sampling_is_sent_none(name: str) -> None:
    choice = ModelChoice(name="kimi-k2.5", sampling={name: 0.5})
    assert "fixed sampling" in refused(choice, MOONSHOT_API_KEY=KEY).message
    own = ModelChoice(name="kimi-k2.5", base_url="http://localhost:1/v1", sampling={name: 0.5})
    assert endpoint(own).sampling == {name: 0.5}


@pytest.mark.parametrize("name", ["n", "max_tokens", "service_tier", "model", "tools", "stream", "plugins"])
def test_sampling_cannot_set_what_the_budget_or_the_wire_depends_on(name: str) -> None:
    assert f"sampling cannot set `{name}`" in refused(ModelChoice(name="m", sampling={name: 3})).message


@given(key=st.text(max_size=60), name=st.sampled_from(sorted(BY_NAME)), url=st.text(max_size=40))
@settings(max_examples=150, deadline=None)
def test_no_key_or_url_does_more_than_be_refused_and_no_message_shows_the_key(key: str, name: str, url: str) -> None:
    preset = BY_NAME[name]
    env = {preset.keys[0]: key}
    for choice in (ModelChoice(provider=name, name="m"), ModelChoice(name="m", base_url=url), ModelChoice(key_env=key)):
        try:
            resolve(choice, env)
        except ProviderError as error:
            assert len(key) < 12 or key not in str(error).replace("[model] key_env", "")


@pytest.mark.parametrize(
    ("provider", "model", "dialect"),
    [
        ("moonshot", "kimi-k2.5", "kimi"),
        ("openai", "gpt-4.1", "openai"),
        ("anthropic", "claude-sonnet-4-5", "anthropic"),
        ("gemini", "gemini-2.5-flash", "gemini"),
        ("deepseek", "deepseek-flash", "deepseek"),
        ("openrouter", "moonshotai/kimi-k2.5", "kimi"),
        ("openrouter", "google/gemini-2.5-pro", "gemini"),
        ("openrouter", "qwen/qwen3-coder", "plain"),
        ("holysheep", "claude-sonnet-4-5", "anthropic"),
        ("ollama", "qwen3:4b", "plain"),
    ],
)
def test_schemas_are_written_for_the_maker_of_the_model_whoever_serves_it(
    provider: str, model: str, dialect: str
) -> None:
    found = resolve(ModelChoice(name=model, provider=provider), {})
    assert (found.endpoint if isinstance(found, NoKey) else found).dialect == dialect


# -- a name with a colon ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tag",
    [
        *("latest", "4b", "0.6b", "e4b", "8x22b", "135m", "1t-cloud", "480b-cloud", "cloud", "mini", "v1.5"),
        *("70b-instruct-q4_K_M", "3b-instruct-fp16", "14b-medium-128k-instruct-q4_0", "instruct", "thinking"),
    ],
)
def test_the_tags_of_ollama_are_asked_of_ollama_whatever_their_model_is_called(tag: str) -> None:
    for family in ("qwen3", "llama3", "deepseek-r1", "gpt-oss", "kimi-k2.5", "gemma3n"):
        found = endpoint(ModelChoice(name=f"{family}:{tag}"), MOONSHOT_API_KEY=KEY)
        assert (found.provider, found.model) == ("ollama", f"{family}:{tag}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("opnai:gpt-4.1", "openai:gpt-4.1"), ("opnai:x", "openai:x"), ("Moonshoot:kimi-k2.5", "moonshot:kimi-k2.5")],
)
def test_a_provider_that_is_mistyped_before_a_colon_is_no_model_of_ollama(name: str, meant: str) -> None:
    for choice in (ModelChoice(name=name), ModelChoice(name=name, provider="moonshot")):
        assert refused(choice, MOONSHOT_API_KEY=KEY).remedy == f"Did you mean {meant}?"


def test_what_is_neither_a_provider_nor_a_tag_is_refused_with_how_to_say_it() -> None:
    error = refused(ModelChoice(name="house:dev"))
    assert "`house` is no provider" in error.message and "`dev` no tag" in error.message
    assert "--provider" in error.remedy and "ollama" in error.remedy
    assert refused(ModelChoice(name="openai:")).remedy == "Write openai:MODEL."
    assert endpoint(ModelChoice(name="house:dev", provider="ollama")).model == "house:dev"
    assert endpoint(ModelChoice(name="opnai:x", base_url="http://127.0.0.1:9/v1")).model == "opnai:x"
    assert endpoint(ModelChoice(name="ft:gpt-4o:house::x1", provider="openai"), OPENAI_API_KEY=KEY).provider == "openai"
