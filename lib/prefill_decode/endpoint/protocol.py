"""Protocol: the requests and responses of OpenAI's completions and chat completions.

Counts:  the parameters below. Null means "not given". Each field's description is also the rule
         that a client is told when it breaks it.
Ignores: parameters that it does not know, such as store or metadata; what it knows and cannot do
         is refused by name, unless it has the value that changes nothing (NEUTRAL).
Source:  OpenAI's API reference, "Completions" and "Chat"; ignore_eos, min_tokens and
         continuous_usage_stats as vLLM has them.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prefill_decode.endpoint.errors import ApiError, refuse

MOST_ANSWERS = 16
MOST_PROMPTS = 128
MOST_STOPS = 4
MOST_STOP_LETTERS = 1000
DEFAULT_COMPLETION_TOKENS = 16  # as OpenAI has it
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
}

Given = TypeVar("Given", bound="GenerationRequest")
Entry = TypeVar("Entry")
# Read up to its first wrong entry: a record of each of a million would cost gigabytes.
List = Annotated[list[Entry], Field(fail_fast=True)]
Prompts = Annotated[list[Entry], Field(fail_fast=True, max_length=MOST_PROMPTS)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
StopText = Annotated[str, Field(min_length=1, max_length=MOST_STOP_LETTERS)]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


def _unsupported(name: str, neutral: str) -> Any:
    return Field(
        default=None,
        description=f"{neutral}: it is not supported here",
        json_schema_extra={"enum": [None, *NEUTRAL[name]]},
    )


class StreamOptions(Strict):
    include_usage: bool | None = Field(None, description="true or false")
    continuous_usage_stats: bool | None = Field(None, description="true or false")


class GenerationRequest(Strict):
    """What both kinds of request share."""

    model: str = Field(description="the name of the served model, as /v1/models gives it")
    max_tokens: int | None = Field(None, ge=1, description="a whole number from 1 on")
    temperature: float | None = Field(
        None, ge=0, le=2, description="a number from 0, greedy, to 2; 1 if not given"
    )
    top_p: float | None = Field(None, gt=0, le=1, description="a number above 0 and at most 1")
    n: int | None = Field(
        None, ge=1, le=MOST_ANSWERS, description=f"a whole number from 1 to {MOST_ANSWERS}"
    )
    seed: Int64 | None = Field(
        None, description="a whole number of 64 bits; drawn for each prompt if not given"
    )
    stop: StopText | Annotated[List[StopText], Field(max_length=MOST_STOPS)] | None = Field(
        None,
        description=f"a text or up to {MOST_STOPS}, each of 1 to {MOST_STOP_LETTERS} characters",
    )
    stream: bool | None = Field(None, description="true or false")
    stream_options: StreamOptions | None = Field(
        None, description="an object with include_usage and continuous_usage_stats, true or false"
    )
    user: str | None = Field(None, description="a text; nothing is done with it")
    ignore_eos: bool | None = Field(
        None, description="true or false; true: the model's own end does not end the answer"
    )
    min_tokens: int | None = Field(
        None, ge=0, description="0, or any whole number where ignore_eos is true and stop not given"
    )
    frequency_penalty: Any = _unsupported("frequency_penalty", "0")
    presence_penalty: Any = _unsupported("presence_penalty", "0")
    logit_bias: Any = _unsupported("logit_bias", "an empty object")

    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def wants_usage_always(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionRequest(GenerationRequest):
    prompt: str | Prompts[str] | List[TokenId] | Prompts[List[TokenId]] = Field(
        description="a text, a list of texts, a list of token ids, or a list of such lists; "
        f"texts and lists from 1 to {MOST_PROMPTS}"
    )
    logprobs: int | None = Field(None, ge=0, le=5, description="a whole number from 0 to 5")
    best_of: Any = _unsupported("best_of", "1")
    echo: Any = _unsupported("echo", "false")
    suffix: Any = _unsupported("suffix", "an empty text")

    @property
    def top_logprobs_wanted(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[str] | list[list[int]]:
        """One entry a request to the engine. ApiError 400 for none."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise refuse("prompt", f"prompt must have from 1 to {MOST_PROMPTS} entries; got 0")
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | List[TextPart]

    def plain(self) -> dict[str, str]:
        if isinstance(self.content, str):
            return {"role": self.role, "content": self.content}
        return {"role": self.role, "content": "".join(part.text for part in self.content)}


class ChatRequest(GenerationRequest):
    messages: List[Message] = Field(
        min_length=1,
        description="a list of at least one message, each with the role system, developer, user or "
        "assistant and with content that is a text or a list of text parts",
    )
    max_completion_tokens: int | None = Field(None, ge=1, description="a whole number from 1 on")
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: int | None = Field(
        None, ge=0, le=20, description="a whole number from 0 to 20, with logprobs true"
    )
    tools: Any = _unsupported("tools", "an empty list")
    tool_choice: Any = _unsupported("tool_choice", "none or auto")
    functions: Any = _unsupported("functions", "an empty list")
    function_call: Any = _unsupported("function_call", "none or auto")
    response_format: Any = _unsupported("response_format", '{"type": "text"}')

    @property
    def top_logprobs_wanted(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def parse(kind: type[Given], document: object) -> Given:
    """The request in a JSON document. ApiError 400 naming the first parameter that is wrong."""
    if not isinstance(document, dict):
        raise ApiError(400, f"the body must be a JSON object; got a {_json_name(document)}")
    try:
        request = kind.model_validate(document)
    except ValidationError as error:
        raise _explained(kind, document, error) from None
    _check_neutral(request)
    _check_together(request)
    return request


def _explained(kind: type[BaseModel], document: dict[str, Any], error: ValidationError) -> ApiError:
    param = str(error.errors(include_url=False, include_context=False)[0]["loc"][0])
    rule = kind.model_fields[param].description
    if param not in document:
        return ApiError(
            400, f"{param} is required: {rule}", param=param, code="missing_required_parameter"
        )
    got = _shortened(document[param])
    return refuse(param, f"{param} must be {rule}; got {got}")


def _shortened(value: object, most: int = 80) -> str:
    """A value as it may stand in a sentence, without writing all of a long one first."""
    if isinstance(value, str | list):
        value = value[:most]
    elif isinstance(value, int) and abs(value) >= 10**most:
        return "a number of very many digits"
    text = ascii(value)
    return text if len(text) <= most else f"{text[:most]}..."


def _check_neutral(request: GenerationRequest) -> None:
    for name, neutral in NEUTRAL.items():
        value = getattr(request, name, None)
        same = [v for v in neutral if v == value and isinstance(v, bool) == isinstance(value, bool)]
        if value is not None and not same:
            rule = type(request).model_fields[name].description
            raise ApiError(
                400,
                f"{name} must be {rule}; got {_shortened(value)}",
                param=name,
                code="unsupported_parameter",
            )


def _check_together(request: GenerationRequest) -> None:
    """What single parameters may be and several together may not."""
    if request.min_tokens and (not request.ignore_eos or request.stops):
        raise refuse("min_tokens", "min_tokens needs ignore_eos true and no stop: it is no filter")
    if request.stream_options is not None and not request.stream:
        raise refuse("stream_options", "stream_options needs stream true")
    if isinstance(request, ChatRequest):
        if request.top_logprobs is not None and not request.logprobs:
            raise refuse("top_logprobs", "top_logprobs needs logprobs true")
        if len({request.max_tokens, request.max_completion_tokens} - {None}) == 2:
            raise refuse(
                "max_tokens",
                "max_tokens and max_completion_tokens mean the same; got "
                f"{request.max_tokens} and {request.max_completion_tokens}",
            )


def most_tokens_asked(request: GenerationRequest) -> int | None:
    if isinstance(request, ChatRequest):
        return request.max_completion_tokens or request.max_tokens
    return request.max_tokens or DEFAULT_COMPLETION_TOKENS


def _json_name(value: object) -> str:
    names = {str: "text", list: "list", bool: "truth value", int: "number", float: "number"}
    return names.get(type(value), "null")
