"""A chat request as its caller sent it: checked, and bounded in what it can cost. Pure.

Everything that is not looked at here is passed on as it came: upstreams know fields that we do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

from centuria.gateway.parts import check_parts
from centuria.gateway.problems import bad_request

_MODELS, _NAME, _MESSAGES, _CHOICES = 16, 200, 100_000, 128
_MOST_TOKENS = 10**7
_WORDS = ("text", "refusal")
#: By which names an answer's length is bounded.
LIMITS = ("max_tokens", "max_completion_tokens")
#: Fields that change what a request costs in ways that no price table knows.
_UNPRICED: Mapping[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "default", "standard_only"),
    "web_search_options": (),
    "audio": (),
    "background": (False,),
    "plugins": ([],),
    "search_parameters": (),
    "enable_search": (False,),
    # Who serves it, and how quickly: the same model has several prices at a provider that asks others.
    "provider": (),
    "providerOptions": (),
    "preset": (),
    "speed": ("standard",),
    # How many tokens there are in so many bytes, or in a picture.
    "chat_template": (),
    "mm_processor_kwargs": (),
}
#: Without any of these a request costs nothing but tokens.
_COSTLY = frozenset({*_UNPRICED, "modalities", "tools", "prediction"})


@dataclass(slots=True)
class Question:
    """A checked request. `fields` are the upstream's, without `model`; `models` in the order of preference.

    `max_tokens` bounds one answer (None: not said), `answers` is their number, `others` counts parts that are no text,
    `wholes` those of them that are no picture either, and may take a model's whole window each.
    `prediction` is the size in bytes of an answer that was predicted, which may be paid for beside the real one.
    """

    models: tuple[str, ...]
    fields: dict[str, Any]
    stream: bool
    wants_usage: bool
    max_tokens: int | None
    answers: int
    others: int
    mcp_tools: tuple[str, ...] | None = None
    prediction: int = 0
    wholes: int = 0


def parse(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises `Problem` (400)."""
    check_parts(body)
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise bad_request(f"The body is not JSON: {str(error)[:200]}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    return value


def check(fields: dict[str, Any]) -> Question:
    """Take a parsed body apart. Raises `Problem` (400) that names the field."""
    models = _models(fields.pop("model", None), fields.pop("models", None))
    tools = fields.pop("mcp_tools", None)
    stream = fields.get("stream")
    others, wholes = _check_messages(fields.get("messages"))
    if stream is not None and not isinstance(stream, bool):
        raise bad_request("`stream` must be true or false.", param="stream")
    return Question(
        models=models,
        fields=fields,
        stream=bool(stream),
        wants_usage=_wants_usage(fields),
        max_tokens=_max_tokens(fields),
        answers=_count(fields, "n", _CHOICES) or 1,
        others=others,
        wholes=wholes,
        mcp_tools=None if tools is None else _names(tools, "mcp_tools", 128),
        prediction=_check_cost(fields),
    )


def written(fields: Mapping[str, Any]) -> bytes:
    """A request's body. It is always written anew: a name that stands twice in what came means one thing to us and
    another to an upstream. Raises `Problem` (400)."""
    try:
        body = to_json(fields)
        if b"Infinity" in body:  # a number such as 1e999, which no JSON can say again; or a word
            from_json(body, allow_inf_nan=False)
        return body
    except ValueError as error:
        raise bad_request(f"The body cannot be passed on: {str(error)[:200]}.") from None


def _models(model: Any, models: Any) -> tuple[str, ...]:
    if models is None:
        names: list[Any] = [model]
    elif isinstance(models, list) and 0 < len(models) <= _MODELS:
        names = ([] if model is None else [model]) + models
    else:
        raise bad_request(f"`models` must be a list of 1 to {_MODELS} models, the first choice first.", param="models")
    for name in names:
        if not isinstance(name, str) or not name or len(name) > _NAME:
            raise bad_request("`model` must be the name of a model.", param="model", remedy="See GET /v1/models.")
    return tuple(dict.fromkeys(names))


def _wants_usage(fields: Mapping[str, Any]) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise bad_request("`stream_options` must be an object.", param="stream_options")
    wants = options.get("include_usage")
    if wants is not None and not isinstance(wants, bool):
        raise bad_request("`include_usage` must be true or false.", param="stream_options.include_usage")
    return options.get("include_usage") is True


def _max_tokens(fields: dict[str, Any]) -> int | None:
    """The larger of both limits: which of them an upstream obeys is its own affair."""
    limits = [_count(fields, name, _MOST_TOKENS) or 0 for name in LIMITS if name in fields]
    return max(limits, default=0) or None


def _count(fields: dict[str, Any], name: str, most: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = fields[name] = int(value)  # 4096.0 is a whole number in JSON, and some upstreams do not know that
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise bad_request(f"`{name}` must be a whole number from 1 to {most:,}.", param=name)
    return value


def _names(value: Any, field: str, most: int) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > most or not all(isinstance(name, str) and name for name in value):
        raise bad_request(f"`{field}` must be a list of at most {most} names.", param=field)
    return tuple(dict.fromkeys(value))


def _check_messages(messages: Any) -> tuple[int, int]:
    """The number of parts that are no text, and of those that are no picture either."""
    if not isinstance(messages, list) or not messages:
        raise bad_request("`messages` must be a list with one message at least.", param="messages")
    if len(messages) > _MESSAGES:
        raise bad_request(f"`messages` holds more than {_MESSAGES:,} messages.", param="messages")
    others = wholes = 0
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise bad_request("Each message must be an object with a `role`.", param=f"messages[{number}]")
        content = message.get("content")
        if message["role"] == "cache" or message.get("audio") is not None:
            others, wholes = others + 1, wholes + 1  # it names what its provider keeps, of which we see nothing
        if isinstance(content, list):
            media = [part for part in content if not (isinstance(part, dict) and part.get("type") in _WORDS)]
            others += len(media)
            wholes += sum(not _is_picture(part) for part in media)
        elif content is not None and not isinstance(content, str):
            raise bad_request("`content` must be text or a list of parts.", param=f"messages[{number}].content")
    return others, wholes


def _is_picture(part: Any) -> bool:
    """One picture, as far as is said: some upstreams take films and papers by that name, too."""
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return False
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    return not (isinstance(url, str) and url[:5].lower() == "data:" and url[:11].lower() != "data:image/")


def _check_cost(fields: Mapping[str, Any]) -> int:
    """Refuse what would cost more than tokens do; the size of a predicted answer."""
    if _COSTLY.isdisjoint(fields):
        return 0
    for name, harmless in _UNPRICED.items():
        value = fields.get(name)
        # 0 is equal to false, and is not what an upstream takes for it.
        if value is not None and not any(value is one or (isinstance(value, str) and value == one) for one in harmless):
            raise bad_request(f"`{name}` is not passed on: what it costs is not known.", param=name)
    modalities = fields.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise bad_request("`modalities` can only be text: what others cost is not known.", param="modalities")
    tools = fields.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise bad_request("`tools` must be a list.", param="tools")
    for number, tool in enumerate(tools or ()):
        if not isinstance(tool, dict) or tool.get("type", "function") not in ("function", "custom"):
            raise bad_request(
                "Only functions can be called: what a provider's own tools cost is not known.",
                param=f"tools[{number}].type",
            )
    prediction = fields.get("prediction")
    return 0 if prediction is None else len(written({"prediction": prediction}))
