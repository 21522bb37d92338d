"""Server: OpenAI's completions and chat completions over the engine, as an ASGI application.

Routes:  POST /v1/completions, POST /v1/chat/completions, GET /v1/models, GET /v1/models/{id},
         GET /health, GET /metrics, GET /openapi.json.
Counts:  a request arrives when its headers have; its body is part of its time to first token.
Ignores: everything else of OpenAI's interface; /openapi.json lists the parameters.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from time import perf_counter, time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from prefill_decode import __version__
from prefill_decode.endpoint.answers import Answer, Piece
from prefill_decode.endpoint.doors import Doorkeeper, Limits
from prefill_decode.endpoint.errors import ApiError, refuse
from prefill_decode.endpoint.event_response import EventResponse, unless_gone
from prefill_decode.endpoint.json_body import parse_json, read_body
from prefill_decode.endpoint.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    most_tokens_asked,
    parse,
)
from prefill_decode.endpoint.replies import Replies
from prefill_decode.endpoint.service import AnswerStream, Service, Submission
from prefill_decode.endpoint.tokenizer import Detokenizer, Tokenizer
from prefill_decode.engine.sampling import Sampling

LARGE_BODY = 20_000  # bytes, from which on reading one would hold up the event loop
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "What is wrong with the request, in OpenAI's shape"},
    "5XX": {"description": "What is wrong with the server, in OpenAI's shape"},
}
GONE = Response(status_code=499)  # for a client that has left: nobody reads it


@dataclass(frozen=True)
class Served:
    """What the routes serve."""

    service: Service
    tokenizer: Tokenizer
    model: str
    limits: Limits = field(default_factory=Limits)
    dice: Random = field(default_factory=Random)  # of the seeds that requests do not give
    started: int = field(default_factory=lambda: int(time()))


@dataclass(frozen=True)
class Work:
    """A request that has been read: what the engine shall do and how to tell of it."""

    submissions: Sequence[Submission]
    answers: Sequence[Answer]
    replies: Replies
    stream: bool


def create_app(
    served: Served, api_key: str | None = None, allowed_host: str | None = "localhost"
) -> ASGIApp:
    """The application. `allowed_host`: the loopback name under which it may be asked, beside
    localhost and loopback addresses; None: under any name."""
    app = FastAPI(
        title="prefill-decode serve",
        version=__version__,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_errors(app)
    _add_generation(app, served)
    _add_models(app, served)
    _add_watching(app, served)
    return Doorkeeper(app, api_key, allowed_host)


def _add_errors(app: FastAPI) -> None:
    async def told(_: Request, error: Any) -> Response:
        return JSONResponse(error.body(), error.status, error.headers)

    async def no_route(request: Request, error: Any) -> Response:
        where = f"{request.method} {ascii(request.url.path)[1:-1][:200]}"
        words = "is no route of this server" if error.status_code == 404 else error.detail
        body = ApiError(error.status_code, f"{where}: {words}").body()
        return JSONResponse(body, error.status_code, error.headers)

    async def broken(_: Request, error: Exception) -> Response:
        body = ApiError(500, "the server failed in this request; its log says how").body()
        return JSONResponse(body, 500)

    app.add_exception_handler(ApiError, told)
    app.add_exception_handler(Exception, broken)
    app.add_exception_handler(HTTPException, no_route)


def _add_generation(app: FastAPI, served: Served) -> None:
    kinds: dict[str, type[GenerationRequest]] = {
        "/v1/completions": CompletionRequest,
        "/v1/chat/completions": ChatRequest,
    }
    template = "#/components/schemas/{model}"
    _, schemas = models_json_schema(
        [(kind, "validation") for kind in kinds.values()], ref_template=template
    )

    def route(path: str, kind: type[GenerationRequest]) -> None:
        schema = {"$ref": template.format(model=kind.__name__)}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}

        async def generate(request: Request) -> Response:
            return await _generate(served, request, kind)

        app.post(
            path,
            name=path.removeprefix("/v1/"),
            response_class=JSONResponse,
            responses=ERRORS,
            openapi_extra={"requestBody": body},
        )(generate)

    for path, kind in kinds.items():
        route(path, kind)
    describe = app.openapi

    def described() -> dict[str, Any]:
        document = describe()
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        return document

    app.openapi = described  # type: ignore[method-assign]


def _add_models(app: FastAPI, served: Served) -> None:
    card = {
        "id": served.model,
        "object": "model",
        "created": served.started,
        "owned_by": "prefill-decode",
        "max_model_len": served.service.capacity_tokens,
    }

    @app.get("/v1/models", responses=ERRORS)
    async def models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [card]})

    @app.get("/v1/models/{name:path}", responses=ERRORS)
    async def model(name: str) -> JSONResponse:
        _check_model(served, name)
        return JSONResponse(card)


def _add_watching(app: FastAPI, served: Served) -> None:
    @app.get("/health", responses=ERRORS)
    async def health() -> JSONResponse:
        served.service.check_health()
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", responses=ERRORS)
    async def metrics() -> Response:
        text = served.service.metrics.text()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _generate(served: Served, request: Request, kind: type[GenerationRequest]) -> Response:
    arrived_s = perf_counter()
    service = served.service
    try:
        service.check_open()
        work = await _read(served, request, kind)
        room = served.limits.most_tokens_behind * len(work.answers) if work.stream else None
        stream = await service.open(work.submissions, work.answers, arrived_s, room)
    except ApiError as error:
        service.metrics.count_error(error.status)
        raise
    except ClientDisconnect:
        service.metrics.requests.labels("cancelled").inc()
        return GONE
    except Exception:
        service.metrics.count_error(500)
        raise
    if work.stream:
        return EventResponse(service, stream, work.replies)
    try:
        pieces = await unless_gone(request.receive, _all_pieces(stream))
    finally:
        service.close(stream)
    if pieces is None:
        return GONE
    return JSONResponse(work.replies.whole(pieces, len(work.answers)))


async def _read(served: Served, request: Request, kind: type[GenerationRequest]) -> Work:
    _check_content_type(request.headers.get("content-type"))
    limits = served.limits
    announced = request.headers.get("content-length")
    body = await read_body(request.stream(), announced, limits.most_body_bytes, limits.body_s)
    if len(body) < LARGE_BODY:
        return _understood(served, kind, body)
    return await asyncio.to_thread(_understood, served, kind, body)


def _understood(served: Served, kind: type[GenerationRequest], body: bytes) -> Work:
    """The work that a body asks for. It may take long, and touches nothing but its arguments."""
    asked = parse(kind, parse_json(body))
    _check_model(served, asked.model)
    return _work(served, asked, _prompts(served, asked))


def _check_content_type(value: str | None) -> None:
    if (value or "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(
            415, f"the body must have Content-Type: application/json; got {ascii(value)[:80]}"
        )


def _check_model(served: Served, name: str) -> None:
    if name != served.model:
        raise ApiError(
            404,
            f"the model served here is {served.model}; got {ascii(name)[:80]}",
            param="model",
            code="model_not_found",
        )


def _prompts(served: Served, asked: GenerationRequest) -> list[list[int]]:
    """The token ids of each prompt. ApiError 400 for ids that the model does not have."""
    tokenizer = served.tokenizer
    if isinstance(asked, ChatRequest):
        messages = [message.plain() for message in asked.messages]
        try:
            return [tokenizer.chat(messages)]
        except ValueError as error:
            raise refuse("messages", str(error)) from error
    assert isinstance(asked, CompletionRequest)
    prompts = []
    for prompt in asked.prompts():
        if isinstance(prompt, str):
            prompt = tokenizer.encode(prompt)
        elif max(prompt, default=0) >= tokenizer.vocab_size:
            most = tokenizer.vocab_size - 1
            raise refuse("prompt", f"token ids are from 0 to {most}; got {max(prompt)}")
        prompts.append(prompt)
    return prompts


def _work(served: Served, asked: GenerationRequest, prompts: list[list[int]]) -> Work:
    chat = isinstance(asked, ChatRequest)
    reply_id = ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12)
    num_answers = asked.n or 1
    submissions = [
        Submission(
            request_id=f"{reply_id}-{index}",
            prompt_ids=prompt,
            most_output_tokens=_most_tokens(served, asked, prompt),
            sampling=_sampling(served, asked),
            stop_ids=frozenset() if asked.ignore_eos else served.tokenizer.stop_ids,
            answers=num_answers,
        )
        for index, prompt in enumerate(prompts)
    ]
    answers = [
        Answer(index, Detokenizer(served.tokenizer), asked.stops)
        for index in range(num_answers * len(prompts))
    ]
    replies = Replies(
        kind="chat" if chat else "completion",
        reply_id=reply_id,
        created=int(time()),
        model=served.model,
        tokenizer=served.tokenizer,
        prompt_tokens=sum(map(len, prompts)),
        logprobs=_top_logprobs(asked) is not None,
        usage_always=asked.wants_usage_always(),
        usage_at_end=asked.wants_usage(),
    )
    return Work(submissions, answers, replies, bool(asked.stream))


def _most_tokens(served: Served, asked: GenerationRequest, prompt: Sequence[int]) -> int:
    """How many tokens an answer may have. ApiError 400 where prompt and answer do not fit."""
    param = "messages" if isinstance(asked, ChatRequest) else "prompt"
    capacity = served.service.capacity_tokens
    if not prompt:
        raise refuse(param, "a prompt needs at least one token; got none")
    most = most_tokens_asked(asked)
    if len(prompt) + (most or 1) > capacity:
        raise ApiError(
            400,
            f"a prompt and its answer may have {capacity} tokens together; got a prompt of "
            f"{len(prompt)} and an answer of up to {most or 1}",
            param=param,
            code="context_length_exceeded",
        )
    return capacity - len(prompt) if most is None else most


def _sampling(served: Served, asked: GenerationRequest) -> Sampling:
    return Sampling(
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        seed=served.dice.getrandbits(63) if asked.seed is None else asked.seed,
        top_logprobs=_top_logprobs(asked),
    )


def _top_logprobs(asked: GenerationRequest) -> int | None:
    assert isinstance(asked, ChatRequest | CompletionRequest)
    return asked.top_logprobs_wanted


async def _all_pieces(stream: AnswerStream) -> list[Piece]:
    found: list[Piece] = []
    while pieces := await stream.take():
        found += pieces
    return found
