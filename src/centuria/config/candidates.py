"""The models of a comparison, from what a user writes to what `providers.resolve` takes.

kimi-k2.6                       in the place of [model]'s `name`, as `centuria run --model` does
openai:gpt-4.1                  a model at a provider of the presets
http://127.0.0.1:8080/v1#name   a model at any OpenAI-compatible server
local                           a table [compare.models.local] of the job file
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from centuria.config.presets import BY_NAME, PRESETS
from centuria.config.providers import ModelChoice, NoKey, at_provider, resolve
from centuria.core.quoting import did_you_mean, quoted
from centuria.errors import JobError, ProviderError
from centuria.settings import Endpoint

#: More models than this in one comparison is a slip of the pen.
MOST = 50


@dataclass(frozen=True, slots=True)
class Contender:
    """One model of a comparison. `label` is unique among them; `written` is how the user called it."""

    label: str
    written: str
    choice: ModelChoice


def contenders(
    specs: Sequence[str], job: ModelChoice, named: Mapping[str, ModelChoice] | None = None
) -> tuple[Contender, ...]:
    """The models that these texts name, none: all that the job file names. One that is named twice runs twice.

    `job` is the job's own `[model]`, `named` its `[compare.models]`. Raises `JobError`, `ProviderError`.
    """
    named = named or {}
    texts = [spec.strip() for spec in specs] or list(named)
    if not texts:
        raise JobError(
            "No models are named.",
            remedy="Give them: --models kimi-k2.5,openai:gpt-4.1, or write [compare.models.NAME] into the job file.",
        )
    if len(texts) > MOST:
        raise JobError(f"A comparison has at most {MOST} models, not {len(texts)}.", remedy="Name fewer.")
    found: dict[str, Contender] = {}
    for text in texts:
        name, choice = _read(text, job, named)
        label, number = name, 1
        while label in found:
            number += 1
            label = f"{name} ({number})"
        found[label] = Contender(label, text, choice)
    return tuple(found.values())


def reference_of(text: str | None, among: Sequence[Contender]) -> str:
    """The label of the reference: the first, where none is said. Raises `JobError` for one that does not run."""
    if text is None:
        return among[0].label
    for one in among:
        if text in (one.label, one.written):
            return one.label
    raise JobError(
        f"The reference {quoted(text)} is none of the models.", remedy=did_you_mean(text, [one.label for one in among])
    )


def pinned(choice: ModelChoice, env: Mapping[str, str]) -> ModelChoice:
    """The choice with all that the environment decides written out, so that it means the same in a resume.

    An address that was chosen is not replaced by `CENTURIA_BASE_URL`. Raises `ProviderError`.
    """
    provider = (choice.provider or "").lower()
    if provider and provider != "custom" and choice.base_url is None:
        env = {name: value for name, value in env.items() if name != "CENTURIA_BASE_URL"}
    resolved = resolve(choice, env)
    endpoint: Endpoint = resolved.endpoint if isinstance(resolved, NoKey) else resolved
    return replace(choice, name=endpoint.model, provider=endpoint.provider, base_url=endpoint.base_url)


def _read(text: str, job: ModelChoice, named: Mapping[str, ModelChoice]) -> tuple[str, ModelChoice]:
    if text in named:
        return text, named[text]
    if text.startswith(("http://", "https://")):
        return _at_url(text)
    there = at_provider(text)
    if there is not None:
        return text, ModelChoice(name=there[1], provider=there[0])
    if not text or any(char.isspace() for char in text):
        raise JobError(
            f"{quoted(text)} is no model." if text else "A name of a model is empty.",
            remedy="Write NAME, PROVIDER:NAME or URL#NAME, with commas between them.",
        )
    return text, _by_name(text, job)


def _at_url(text: str) -> tuple[str, ModelChoice]:
    url, _, name = text.partition("#")
    if not name:
        raise ProviderError("No model is named for a base URL.", remedy="Write http://HOST/v1#MODEL.")
    try:
        host = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        host = ""  # what is wrong with it is said where it is checked
    return f"{name}@{host}", ModelChoice(name=name, base_url=url)


def _by_name(name: str, job: ModelChoice) -> ModelChoice:
    """The job's own model under another name; not where its provider makes models and this one is another's."""
    own = BY_NAME.get((job.provider or "").lower())
    maker = any(name.lower().startswith(preset.models or ("\0",)) for preset in PRESETS)
    elsewhere = own is not None and own.models and not name.lower().startswith(own.models)
    if job.base_url is None and elsewhere and maker:
        return ModelChoice(name=name)
    return replace(job, name=name)
