"""Prompts become the target's own tokens, once, and answers come apart into thinking and text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datagen.prompts import PlannedPrompt
from datagen.rendering import Renderer, conversation, resolve_target
from manifests.schema import Sampling, Target
from tests.datagen.tiny_target import TEMPLATE, make_target

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def renderer(folder: Path) -> Renderer:
    return Renderer(Target(model=str(folder)))


def _planned(messages: list[dict[str, Any]], parent: str | None = None) -> PlannedPrompt:
    return PlannedPrompt("child", "a", "chat", messages, None, Sampling(), None, parent, "root", 0)


def test_a_prompt_starts_with_one_beginning_token_and_ends_with_the_start_of_the_answer(renderer: Renderer) -> None:
    ids = renderer.render(HELLO)
    assert renderer.tokenizer.decode(ids) == "<s><|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert ids.count(renderer.tokenizer.bos_token_id) == 1


def test_tools_and_parsed_arguments_reach_the_template(renderer: Renderer) -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    call = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"x": 7}'}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "8"}]
    text = renderer.tokenizer.decode(renderer.render(messages, tools))
    assert "tools: add " in text
    assert "add(7)<|im_end|>" in text
    assert call["function"] == {"name": "add", "arguments": '{"x": 7}'}


def test_thinking_is_switched_per_prompt_and_over_the_targets_own_setting(folder: Path, renderer: Renderer) -> None:
    thinks = Renderer(Target(model=str(folder), chat_template_kwargs={"enable_thinking": True}))
    assert not renderer.opens_thinking(renderer.render(HELLO))
    assert renderer.opens_thinking(renderer.render(HELLO, thinking=True))
    assert thinks.opens_thinking(thinks.render(HELLO))
    assert not thinks.opens_thinking(thinks.render(HELLO, thinking=False))


@pytest.mark.parametrize(
    ("text", "reasoning", "completion"),
    [
        ("<think>\nwhy\n</think>\n\nso", "why", "so"),
        ("why\n</think>\nso", "why", "so"),
        ("<think>\n</think>\n\nso", None, "so"),
        ("<think>cut short", "cut short", ""),
        ("no thought", None, "no thought"),
    ],
)
def test_reasoning_and_completion_come_apart(
    renderer: Renderer, text: str, reasoning: str | None, completion: str
) -> None:
    assert renderer.split_reasoning(text, renderer.render(HELLO)) == (reasoning, completion)


def test_a_cut_answer_to_a_prompt_that_opened_thinking_is_all_reasoning(renderer: Renderer) -> None:
    assert renderer.split_reasoning("on and on", renderer.render(HELLO, thinking=True)) == ("on and on", "")


def test_a_target_that_does_not_think_leaves_the_text_alone(tmp_path: Path) -> None:
    plain = Renderer(Target(model=str(make_target(tmp_path, template=TEMPLATE.replace("<think>", ""), thinks=False))))
    assert plain.split_reasoning("a </think> b") == (None, "a </think> b")


def test_a_prompt_that_the_template_refuses_says_why(renderer: Renderer) -> None:
    with pytest.raises(ValueError, match="refuses this prompt: unknown role narrator"):
        renderer.render([{"role": "narrator", "content": "x"}])


def test_context_length_comes_from_the_manifest_then_the_model(folder: Path, renderer: Renderer) -> None:
    assert renderer.context_length == 512
    assert Renderer(Target(model=str(folder), max_model_len=64)).context_length == 64


def test_a_multimodal_configuration_states_its_context_in_its_text_part(tmp_path: Path) -> None:
    target = make_target(tmp_path)
    (target / "config.json").write_text(
        json.dumps({"text_config": {"max_position_embeddings": 99}, "max_position_embeddings": 7})
    )
    assert Renderer(Target(model=str(target))).context_length == 99


def test_a_model_that_states_no_context_needs_one_in_the_manifest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="states no context length; give `target.max_model_len`"):
        Renderer(Target(model=str(make_target(tmp_path, context_length=None))))


def test_a_tokenizer_without_a_template_is_refused_until_the_manifest_names_one(tmp_path: Path) -> None:
    target = make_target(tmp_path / "model", template=None)
    with pytest.raises(ValueError, match="has no chat template"):
        Renderer(Target(model=str(target)))
    (tmp_path / "chat.jinja").write_text("{{ messages[0].content }}!")
    named = Renderer(Target(model=str(target), chat_template="chat.jinja"), tmp_path)
    assert named.tokenizer.decode(named.render(HELLO)) == "hello!"


def test_code_of_a_model_repository_does_not_run_unless_it_is_trusted(tmp_path: Path) -> None:
    target = make_target(tmp_path, auto_map={"AutoTokenizer": ["evil.Tokenizer", None]}, tokenizer_class="Tokenizer")
    (target / "evil.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Tokenizer: pass\n"
    )
    with pytest.raises(ValueError):
        Renderer(Target(model=str(target)))
    assert not (target / "ran").exists()


def test_digests_name_the_tokenizer_and_the_template_and_change_with_them(tmp_path: Path, renderer: Renderer) -> None:
    other = Renderer(Target(model=str(make_target(tmp_path, template=TEMPLATE + " "))))
    one, two = renderer.describe(), other.describe()
    assert one["tokenizer_sha256"]["tokenizer.json"] == two["tokenizer_sha256"]["tokenizer.json"]
    assert one["chat_template_sha256"] != two["chat_template_sha256"]
    assert one["context_length"] == 512


def test_a_hub_model_is_read_from_the_cache_and_names_the_commit_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit = "0123456789abcdef0123456789abcdef01234567"
    make_target(tmp_path / "models--o--small" / "snapshots" / commit)
    (tmp_path / "models--o--small/refs").mkdir()
    (tmp_path / "models--o--small/refs/main").write_text(commit)
    described = Renderer(Target(model="o/small")).describe()
    assert (described["model"], described["revision"], described["commit"]) == ("o/small", None, commit)
    assert set(described["tokenizer_sha256"]) == {"tokenizer.json", "tokenizer_config.json"}


def test_a_target_is_a_folder_here_then_beside_the_manifest_then_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside = tmp_path / "here", tmp_path / "manifests"
    (here / "models/small").mkdir(parents=True)
    (beside / "models/small").mkdir(parents=True)
    (beside / "models/other").mkdir()
    monkeypatch.chdir(here)
    assert resolve_target("models/small", beside) == str(here / "models/small")
    assert resolve_target("models/other", beside) == str(beside / "models/other")
    assert resolve_target("Qwen/Qwen3-8B", beside) == "Qwen/Qwen3-8B"
    with pytest.raises(ValueError, match="'models/none': no such folder here or beside the manifest"):
        resolve_target("models/none", beside)


def test_a_later_turn_is_asked_on_the_targets_own_answer_without_its_reasoning() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parent = {"messages": HELLO, "completion": "hi", "reasoning": "they greet me", "tool_calls": [call]}
    child = _planned([{"role": "user", "content": "and now?"}], parent="root")
    assert conversation(child, {"root": parent}) == [
        *HELLO,
        {"role": "assistant", "content": "hi", "tool_calls": [call]},
        {"role": "user", "content": "and now?"},
    ]
    assert conversation(_planned(HELLO), {}) == HELLO
