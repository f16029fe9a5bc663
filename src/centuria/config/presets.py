"""The providers that Centuria knows by name, and what is known of their models. Data only; sources beside each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

LimitField = Literal["max_tokens", "max_completion_tokens"]


@dataclass(frozen=True, slots=True)
class Preset:
    """A provider. `hosts` are its own; `keys` the variables that hold its key, the first one preferred; `url_variable`
    holds another base URL; `shape` is how its keys begin ("" = not known); `models` how the names of its models begin;
    `dialect` is what it takes as a function's schema, unless the model's own maker says more (`DIALECTS_OF_MODELS`).
    """

    name: str
    title: str
    base_url: str
    hosts: tuple[str, ...]
    keys: tuple[str, ...]
    model: str
    context: int
    thinks: bool
    limit_field: LimitField = "max_tokens"
    url_variable: str | None = None
    shape: str = ""
    models: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    needs_key: bool = True
    get_key: str = ""
    dialect: str = "plain"


PRESETS: tuple[Preset, ...] = (
    # platform.moonshot.ai: OpenAPI of /v1/chat/completions (max_tokens is a deprecated alias). Keys of .ai
    # and .cn are not interchangeable.
    Preset(
        "moonshot",
        "Moonshot",
        "https://api.moonshot.ai/v1",
        ("api.moonshot.ai", "api.moonshot.cn"),
        ("MOONSHOT_API_KEY",),
        "kimi-k2.5",
        262_144,
        True,
        limit_field="max_completion_tokens",
        url_variable="MOONSHOT_BASE_URL",
        models=("kimi-", "moonshot-"),
        get_key="https://platform.moonshot.ai/console/api-keys",
        dialect="kimi",
    ),
    # A gateway to the models of many providers; www.holysheep.ai.
    Preset(
        "holysheep",
        "HolySheep",
        "https://api.holysheep.ai/v1",
        ("api.holysheep.ai",),
        ("HOLYSHEEP_API_KEY",),
        "kimi-k2.5",
        262_144,
        True,
        url_variable="HOLYSHEEP_BASE_URL",
        models=("kimi-", "gpt-", "claude-", "gemini-", "deepseek-"),
        get_key="https://www.holysheep.ai/register",
    ),
    # platform.openai.com/docs/models/gpt-4.1; max_completion_tokens replaces max_tokens (API reference, chat/create).
    Preset(
        "openai",
        "OpenAI",
        "https://api.openai.com/v1",
        ("api.openai.com", "eu.api.openai.com", "us.api.openai.com"),
        ("OPENAI_API_KEY",),
        "gpt-4.1",
        1_047_576,
        False,
        limit_field="max_completion_tokens",
        url_variable="OPENAI_BASE_URL",
        models=("gpt-", "o1", "o3", "o4", "chatgpt-"),
        get_key="https://platform.openai.com/api-keys",
        dialect="openai",
    ),
    # platform.claude.com/docs/en/cli-sdks-libraries/libraries/openai-sdk: the OpenAI-compatible layer. Other
    # programs set ANTHROPIC_BASE_URL for the native API, so it is not read here.
    Preset(
        "anthropic",
        "Anthropic",
        "https://api.anthropic.com/v1",
        ("api.anthropic.com",),
        ("ANTHROPIC_API_KEY",),
        "claude-sonnet-4-5",
        200_000,
        False,
        shape="sk-ant-",
        models=("claude-",),
        get_key="https://console.anthropic.com/settings/keys",
        dialect="anthropic",
    ),
    # ai.google.dev/gemini-api/docs/openai; the models think by default.
    Preset(
        "gemini",
        "Gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        ("generativelanguage.googleapis.com",),
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "gemini-2.5-flash",
        1_048_576,
        True,
        models=("gemini-",),
        get_key="https://aistudio.google.com/apikey",
        dialect="gemini",
    ),
    # api-docs.deepseek.com: both forms of the base URL work; deepseek-chat and deepseek-reasoner ended in July 2026.
    Preset(
        "deepseek",
        "DeepSeek",
        "https://api.deepseek.com/v1",
        ("api.deepseek.com",),
        ("DEEPSEEK_API_KEY",),
        "deepseek-flash",
        1_000_000,
        True,
        url_variable="DEEPSEEK_BASE_URL",
        models=("deepseek-",),
        paths=("", "/v1", "/beta"),
        get_key="https://platform.deepseek.com/api_keys",
        dialect="deepseek",
    ),
    # openrouter.ai/docs/quickstart; names are "maker/model".
    Preset(
        "openrouter",
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        ("openrouter.ai",),
        ("OPENROUTER_API_KEY",),
        "moonshotai/kimi-k2.5",
        262_144,
        True,
        shape="sk-or-",
        get_key="https://openrouter.ai/settings/keys",
    ),
    # docs.ollama.com/api/openai-compatibility; the window is the server's to set (OLLAMA_CONTEXT_LENGTH).
    Preset(
        "ollama",
        "Ollama",
        "http://127.0.0.1:11434/v1",
        (),
        ("OLLAMA_API_KEY",),
        "",
        32_768,
        False,
        url_variable="OLLAMA_BASE_URL",
        needs_key=False,
    ),
    # Any OpenAI-compatible server: vLLM, SGLang, llama.cpp, LM Studio, a gateway.
    Preset("custom", "your own server", "", (), ("CENTURIA_API_KEY",), "", 131_072, False),
)

BY_NAME: Mapping[str, Preset] = {preset.name: preset for preset in PRESETS}

#: How keys begin, and whose they are; the longest match counts. Sources: the providers' consoles, and secret scanners.
KEY_OWNERS: Mapping[str, str] = {
    "sk-ant-": "Anthropic",
    "sk-or-": "OpenRouter",
    "sk-proj-": "OpenAI",
    "sk-svcacct-": "OpenAI",
    "sk-admin-": "OpenAI",
    "sk-kimi-": "Kimi Code",
    "AIza": "Gemini",
    "gsk_": "Groq",
    "xai-": "xAI",
    "pplx-": "Perplexity",
    "hf_": "Hugging Face",
    "ghp_": "GitHub",
    "github_pat_": "GitHub",
    "tvly-": "Tavily",
    "AKIA": "AWS",
}


@dataclass(frozen=True, slots=True)
class Family:
    """Models whose names begin alike. `fixed`: the upstream refuses any sampling parameter."""

    begins: str
    context: int
    thinks: bool
    fixed: bool = False


#: The first match counts; "maker/" before a name is ignored.
FAMILIES: tuple[Family, ...] = (
    # Moonshot: temperature, top_p, n and penalties are fixed from K2.5 on, other values are a 400
    # (Kimi-Vendor-Verifier `verify_params.py`); windows from platform.moonshot.ai/docs/pricing.
    Family("kimi-k3", 1_048_576, True, fixed=True),
    Family("kimi-k2.", 262_144, True, fixed=True),
    Family("kimi-k2-thinking", 262_144, True),
    Family("kimi-k2-0711", 131_072, False),
    Family("kimi-k2", 262_144, False),
    Family("moonshot-v1-8k", 8_192, False),
    Family("moonshot-v1-32k", 32_768, False),
    Family("moonshot-v1", 131_072, False),
    # platform.openai.com/docs/models
    Family("gpt-4.1", 1_047_576, False),
    Family("gpt-4o", 128_000, False),
    Family("gpt-5", 400_000, True),
    Family("o1", 200_000, True),
    Family("o3", 200_000, True),
    Family("o4", 200_000, True),
    # platform.claude.com/docs/en/about-claude/models; the OpenAI-compatible layer does not think unless asked to.
    Family("claude-sonnet-4-6", 1_000_000, False),
    Family("claude-sonnet-5", 1_000_000, False),
    Family("claude-", 200_000, False),
    # ai.google.dev/gemini-api/docs/models
    Family("gemini-2.0", 1_048_576, False),
    Family("gemini-", 1_048_576, True),
    # api-docs.deepseek.com/quick_start/pricing
    Family("deepseek-v3.2", 128_000, False),
    Family("deepseek-", 1_000_000, True),
)

#: How a model's name begins -> the dialect of its maker, who may be behind a gateway; "maker/" before it is ignored.
DIALECTS_OF_MODELS: Mapping[str, str] = {
    "kimi-": "kimi",
    "moonshot-": "kimi",
    "gemini-": "gemini",
    "claude-": "anthropic",
    "deepseek-": "deepseek",
    "gpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
}

#: (provider, how the name begins) -> what is known of its end. Not refused: it may come back, or serve under
#: a contract.
ENDED: Mapping[tuple[str, str], str] = {
    # genai-prices 0.2.3, from platform.kimi.ai/docs/models.md
    ("moonshot", "kimi-k2.5"): "Moonshot announced the end of kimi-k2.5 for 2026-08-31.",
    # api-docs.deepseek.com/news/news260424
    ("deepseek", "deepseek-chat"): "DeepSeek ended deepseek-chat on 2026-07-24.",
    ("deepseek", "deepseek-reasoner"): "DeepSeek ended deepseek-reasoner on 2026-07-24.",
}

#: What to use in place of what has ended.
SUCCESSORS: Mapping[str, str] = {
    "kimi-k2.5": "kimi-k2.6",
    "deepseek-chat": "deepseek-flash",
    "deepseek-reasoner": "deepseek-flash",
}

SAMPLING = frozenset({"temperature", "top_p", "n", "presence_penalty", "frequency_penalty"})

#: Fields of a request that Centuria sets itself, or that change what a call costs: the cap could not hold.
RESERVED: Mapping[str, str] = {
    **dict.fromkeys(("model", "messages", "tools", "stream", "stream_options"), "Centuria sets it"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "it belongs in [job] max_tokens"),
    **dict.fromkeys(
        ("n", "best_of", "service_tier", "web_search_options", "plugins", "models", "modalities"),
        "it changes what a call costs, so the budget could not hold",
    ),
}


def family(model: str) -> Family | None:
    """What is known of a model by its name."""
    name = model.rpartition("/")[2].lower()
    return next((item for item in FAMILIES if name.startswith(item.begins)), None)


def dialect_of(preset: Preset, model: str) -> str:
    """Which dialect of JSON Schema reaches this model through this provider."""
    name = model.rpartition("/")[2].lower()
    own = next((dialect for begins, dialect in DIALECTS_OF_MODELS.items() if name.startswith(begins)), "plain")
    return own if preset.dialect == "plain" else preset.dialect


def by_host(host: str) -> Preset | None:
    """The preset that a host belongs to."""
    return next((preset for preset in PRESETS if host in preset.hosts), None)


def by_variable(variable: str) -> Preset | None:
    """The preset whose key a variable holds."""
    return next((preset for preset in PRESETS if variable in preset.keys), None)


def as_markdown() -> str:
    """The table of `docs/providers.md`."""
    lines = [
        "| `provider` | base URL | key | another base URL | model, if none is named | its window | thinks |",
        "|---|---|---|---|---|---|---|",
    ]
    for preset in PRESETS:
        url = f"`{preset.base_url}`" if preset.base_url else "any: `base_url`, `CENTURIA_BASE_URL`"
        keys = " or ".join(f"`{key}`" for key in preset.keys) + ("" if preset.needs_key else " (not needed)")
        variable = f"`{preset.url_variable}`" if preset.url_variable else ""
        model = f"`{preset.model}`" if preset.model else "none: name one"
        thinks = "yes" if preset.thinks else "no"
        lines.append(f"| `{preset.name}` | {url} | {keys} | {variable} | {model} | {preset.context:,} | {thinks} |")
    return "\n".join(lines)
