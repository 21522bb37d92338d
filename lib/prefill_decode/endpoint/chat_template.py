"""Chat template: a conversation as the text that a model was trained to continue.

Reads:   the Jinja template of a folder, in chat_template.jinja or in tokenizer_config.json.
Ignores: tools and documents, which a template sees as none.
Source:  transformers.utils.chat_template_utils, whose environment, filter and functions these are.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Messages = Sequence[Mapping[str, str]]
FAILURES = (  # what a template can raise over messages that it was not written for
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled template. ValueError for one that is not Jinja's."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self.template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"a chat template must be a Jinja template; {error}") from error
        self.special_tokens = dict(special_tokens)

    def render(self, messages: Messages) -> str:
        """The prompt's text, ready for the answer. ValueError where the template refuses."""
        try:
            return self.template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self.special_tokens,
            )
        except FAILURES as error:
            raise ValueError(
                f"the model's chat template cannot render these messages: {error}"
            ) from error


def plain_chat(messages: Messages) -> str:
    """What a model without a template gets: one line a message, and the answer's beginning."""
    said = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
    return f"{said}assistant:"


class _GenerationBlock(Extension):
    """{% generation %}: marks for training what the model says; here only its content counts."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, **form: Any) -> str:
    """Without Jinja's own escapes, which are HTML's."""
    return json.dumps(value, ensure_ascii=False, **form)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
