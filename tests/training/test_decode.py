"""Decoding with a drafter changes no output: at temperature 0 to the token, above it in distribution."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.decode import Limits, _agree, decode_drafted, decode_plain
from training.drafter import DFlashDrafter
from training.drafter_config import DrafterSettings, configure
from training.target import Target

PROMPT = [3, 17, 5, 29, 8]


@pytest.fixture(scope="module")
def target() -> Target:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=40,
        initializer_range=0.3,
    )
    return Target(LlamaForCausalLM(config).float())


@pytest.fixture(scope="module")
def drafter(target: Target) -> DFlashDrafter:
    settings = DrafterSettings(num_layers=2, block_size=6, num_features=3)
    drafter = DFlashDrafter(configure(settings, target.facts, mask_token_id=39))
    drafter.init_weights(torch.Generator().manual_seed(1))
    return drafter.eval()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.lossless
@pytest.mark.parametrize("tree_nodes", [None, 1, 4, 20])
def test_greedy_text_is_that_of_plain_decoding(target: Target, drafter: DFlashDrafter, tree_nodes: int | None) -> None:
    limits = Limits(max_new_tokens=40)
    plain = decode_plain(target, PROMPT, limits, generator())
    drafted = decode_drafted(target, drafter, PROMPT, limits, generator(), tree_nodes)
    assert drafted.token_ids == plain.token_ids
    assert len(plain.token_ids) == 40


@pytest.mark.lossless
def test_every_token_after_the_first_belongs_to_a_round(target: Target, drafter: DFlashDrafter) -> None:
    for budget in range(1, 25):
        drafted = decode_drafted(target, drafter, PROMPT, Limits(max_new_tokens=budget), generator(), 8)
        emitted = sum(r.accepted + (not r.cut) for r in drafted.rounds)
        assert len(drafted.token_ids) == budget == 1 + emitted


@pytest.mark.lossless
def test_the_end_token_ends_the_text_inside_a_round(target: Target, drafter: DFlashDrafter) -> None:
    plain = decode_plain(target, PROMPT, Limits(max_new_tokens=40), generator())
    end = plain.token_ids[20]
    limits = Limits(max_new_tokens=40, end_token_ids=frozenset({end}))
    expected = plain.token_ids[: plain.token_ids.index(end) + 1]
    assert decode_plain(target, PROMPT, limits, generator()).token_ids == expected
    assert decode_drafted(target, drafter, PROMPT, limits, generator()).token_ids == expected


@pytest.mark.lossless
def test_an_oracle_drafter_is_accepted_whole(
    target: Target, drafter: DFlashDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = decode_plain(target, PROMPT, Limits(max_new_tokens=37), generator()).token_ids

    def oracle(target: Target, drafter: DFlashDrafter, context: object, anchor_id: int) -> torch.Tensor:
        place = context.length - len(PROMPT) + 1  # type: ignore[attr-defined]  # a ContextCache
        following = (plain + [0] * 8)[place : place + 5]
        return torch.nn.functional.one_hot(torch.tensor(following), 40).float() * 9

    monkeypatch.setattr("training.decode.draft_logits", oracle)
    chain = decode_drafted(target, drafter, PROMPT, Limits(max_new_tokens=37), generator())
    tree = decode_drafted(target, drafter, PROMPT, Limits(max_new_tokens=37), generator(), 8)
    assert chain.token_ids == tree.token_ids == plain
    assert [r.accepted for r in chain.rounds] == [5] * 6


@pytest.mark.lossless
def test_speculative_sampling_draws_from_the_target() -> None:
    """Frequencies of the first token after 8,000 rounds lie within four standard errors of p, whatever q is."""
    target_NV = torch.tensor([[1.0, 0.2, -0.5, 0.0], [0.3, 0.3, 0.9, -1.0]])
    drafter_SV = torch.tensor([[-1.0, 1.5, 0.0, 0.4]])
    random, counts, rounds = generator(5), torch.zeros(4), 8_000
    q = (drafter_SV / 0.7).softmax(-1)
    for _ in range(rounds):
        proposed = torch.multinomial(q, 1, generator=random).squeeze(1)
        accepted, bonus = _agree(target_NV, drafter_SV, proposed, 0.7, random)
        counts[int(proposed[0]) if accepted else bonus] += 1
    p = (target_NV[0] / 0.7).softmax(-1)
    assert ((counts / rounds - p).abs() < 4 * (p * (1 - p) / rounds).sqrt()).all()
