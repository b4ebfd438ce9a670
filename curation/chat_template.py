"""One assistant turn as two texts: the prompt as the target saw it, and what it then generated, end of turn included.

The boundary is where the rendered prompt ends, by construction, and is never sought in a rendered conversation. The
template itself says how a turn goes on from there: it renders the conversation once up to the turn with its generation prompt
and once with the turn, and what the second adds to the first is the turn. Where a template rewrites what came before (so the first
is no prefix of the second), or leaves out of the turn something the target said, the turn is put together instead: thinking, answer,
and the template's end of turn, which a probe found when the template was loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

_OPEN, _CLOSE = "<think>", "</think>"
_USER, _ASSISTANT = "draftmill probe question", "draftmill probe answer"
"""Texts of the probe. They meet no data: the probe is a conversation of its own."""


class TemplateRefused(ValueError):
    """The template does not accept this conversation; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn to learn from, as text."""

    prompt: str
    completion: str
    num_end_tokens_cut: int
    """Tokens that the template writes after the end of turn (a newline, mostly), which no target generates."""


class ChatTemplate:
    """A tokenizer's chat template, with what a probe found about it."""

    def __init__(
        self, tokenizer: Any, template_kwargs: dict[str, Any] | None = None, template: str | None = None
    ) -> None:
        """Probe the template.

        Args:
            tokenizer: a transformers tokenizer.
            template_kwargs: passed to every rendering, as the manifest's `chat_template_kwargs`.
            template: Jinja text that replaces the tokenizer's own template.

        Raises:
            ValueError: there is no template, or it cannot render one question and one answer.
        """
        self._tokenizer = tokenizer
        self._kwargs = dict(template_kwargs or {})
        try:
            self.text: str = template if template is not None else tokenizer.get_chat_template()
        except ValueError as error:
            raise ValueError("the tokenizer has no chat template; give a folder whose tokenizer has one") from error
        self._switches_thinking = "enable_thinking" in self.text and "enable_thinking" not in self._kwargs
        question = [{"role": "user", "content": _USER}]
        try:
            prompt = self._render(question, None, True, self._switches_thinking)
            whole = self._render([*question, _as_message(_ASSISTANT)], None, False, self._switches_thinking)
        except TemplateRefused as error:
            raise ValueError(f"the chat template cannot render one question and one answer: {error}") from error
        before, found, self._end = whole.rpartition(_ASSISTANT)
        if not found:
            raise ValueError(
                "the chat template leaves out the assistant's answer; give a tokenizer with a complete one"
            )
        special = set(tokenizer.all_special_ids) | {
            index for index, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        end_ids = tokenizer(self._end, add_special_tokens=False)["input_ids"]
        last_special = max((place for place, index in enumerate(end_ids) if index in special), default=len(end_ids) - 1)
        self._num_after_end = len(end_ids) - 1 - last_special
        # A template that ignores add_generation_prompt leaves the assistant's header to us: it is prompt, not answer.
        header = before[len(prompt) :] if before.startswith(prompt) else ""
        header_ids = tokenizer(header, add_special_tokens=False)["input_ids"]
        self._header = header if any(index in special for index in header_ids) else ""

    def turn(
        self, messages: list[dict[str, Any]], answer: dict[str, Any], tools: Any = None, finished: bool = True
    ) -> Turn:
        """Return the turn in which `answer` follows `messages`.

        Args:
            messages: the prompt, as `rows.normalise` gives it.
            answer: the assistant's message: `content`, and `reasoning` and `tool_calls` where there are any.
            tools: tool definitions.
            finished: whether the target ended the turn itself; without, the completion has no end of turn.

        Raises:
            TemplateRefused: the template does not accept these messages.
        """
        thinks = bool(answer.get("reasoning")) or _CLOSE in answer["content"]
        before = [_for_template(message) for message in messages]
        prompt = self._render(before, tools, True, thinks) + self._header
        whole = self._render([*before, _for_template({"role": "assistant", **answer})], tools, False, thinks)
        completion = whole[len(prompt) :]
        if not (whole.startswith(prompt) and completion.endswith(self._end) and _says_all(completion, answer)):
            if answer.get("tool_calls"):
                raise TemplateRefused("it does not render this turn whole, and only it could render its tool calls")
            completion = _thinking(prompt, answer) + answer["content"] + self._end
        if finished:
            return Turn(prompt, completion, self._num_after_end)
        return Turn(prompt, completion[: len(completion) - len(self._end)], 0)

    def _render(self, messages: list[dict[str, Any]], tools: Any, generation_prompt: bool, thinks: bool) -> str:
        import jinja2  # what the template engine raises; transformers has loaded it already

        # An answer without thinking was given with thinking off: the empty thinking part is then prompt, not answer.
        switch = {"enable_thinking": thinks} if self._switches_thinking else {}
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self.text,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self._kwargs,
                **switch,
            )
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
            # Templates are programs, and odd messages make them fail in a program's ways.
            raise TemplateRefused(" ".join(str(error).split())[:200] or type(error).__name__) from error


def _as_message(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def _for_template(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates expect it: thinking as `reasoning_content`, arguments of tool calls as objects."""
    adapted = dict(message)
    if message.get("reasoning"):
        adapted["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        adapted["tool_calls"] = [_with_object_arguments(call) for call in message["tool_calls"]]
    return adapted


def _with_object_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": orjson.loads(function["arguments"])}}
    except orjson.JSONDecodeError:  # the model that wrote the call made a mistake; the template prints it as it is
        return call


def _says_all(completion: str, answer: dict[str, Any]) -> bool:
    """Return whether the rendered turn holds the thinking and the answer; templates may trim both, or drop the thinking."""
    reasoning, content = answer.get("reasoning") or "", answer["content"]
    if not reasoning and _CLOSE in content:
        reasoning, _, content = content.partition(_CLOSE)
        reasoning = reasoning.strip().removeprefix(_OPEN)
    return reasoning.strip() in completion and content.strip() in completion


def _thinking(prompt: str, answer: dict[str, Any]) -> str:
    """Return the thinking part of a turn that the template did not render whole."""
    if not answer.get("reasoning"):
        return ""
    opened = prompt.rstrip().endswith(_OPEN)
    return ("" if opened else f"{_OPEN}\n") + answer["reasoning"].strip("\n") + f"\n{_CLOSE}\n\n"
