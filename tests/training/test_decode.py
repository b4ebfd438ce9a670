"""Decoding with a drafter changes no output: at temperature 0 to the token, above it in distribution."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from training.decode import Limits, decode_drafted, decode_plain
from training.drafter import DFlashDrafter
from training.drafter_config import DrafterSettings, configure
from training.proposers import DFlashProposer, PromptLookup
from training.target import Step, Target

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
def proposer(target: Target) -> DFlashProposer:
    settings = DrafterSettings(num_layers=2, block_size=6, num_features=3)
    drafter = DFlashDrafter(configure(settings, target.facts, mask_token_id=39))
    drafter.init_weights(torch.Generator().manual_seed(1))
    return DFlashProposer(target, drafter.eval())


class Oracle:
    """Proposes a known text, `num_right` tokens of it rightly and the next one wrongly."""

    layer_ids: tuple[int, ...] = ()

    def __init__(self, prompt_length: int, text: list[int], num_slots: int = 5, num_right: int = 5) -> None:
        self.prompt_length, self.text, self.num_slots, self.num_right = prompt_length, text, num_slots, num_right
        self.read_ids: list[int] = []

    def begin(self) -> None:
        self.read_ids = []

    def read(self, token_ids: list[int], features_NF: Tensor) -> None:
        assert len(features_NF) == len(token_ids)
        self.read_ids += token_ids

    def propose(self, anchor_id: int) -> Tensor:
        done = len(self.read_ids) - self.prompt_length
        assert [*self.read_ids[self.prompt_length :], anchor_id] == self.text[: done + 1]
        following = (self.text + [0] * 8)[done + 1 : done + 1 + self.num_slots]
        said = [token if k < self.num_right else (token + 1) % 40 for k, token in enumerate(following)]
        return torch.nn.functional.one_hot(torch.tensor(said), 40).float() * 9


class MarkovTarget:
    """A target whose next token depends on the last one only, so that the probability of every text is known."""

    device = torch.device("cpu")

    def __init__(self, logits_VV: Tensor) -> None:
        self.logits_VV = logits_VV

    def open_cache(self) -> SimpleNamespace:
        return SimpleNamespace(length=0)

    def extend(self, cache, ids_N, layer_ids, depth_N=None, sees_NN=None) -> Step:
        cache.length += len(ids_N)
        return Step(self.logits_VV[ids_N], torch.zeros(len(ids_N), 0))

    def rollback(self, cache, length: int) -> None:
        cache.length = length

    def keep(self, cache, nodes) -> None:
        pass

    def probability(self, last: int, text: tuple[int, ...], temperature: float) -> float:
        p_VV = (self.logits_VV / temperature).softmax(-1)
        return float(torch.stack([p_VV[a, b] for a, b in itertools.pairwise((last, *text))]).prod())


class Guesser:
    """Proposes from a distribution of its own that knows nothing of the target."""

    layer_ids: tuple[int, ...] = ()

    def __init__(self, logits_SV: Tensor) -> None:
        self.logits_SV = logits_SV

    def begin(self) -> None:
        pass

    def read(self, token_ids: list[int], features_NF: Tensor) -> None:
        pass

    def propose(self, anchor_id: int) -> Tensor:
        return self.logits_SV


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.lossless
@pytest.mark.parametrize("tree_nodes", [None, 1, 4, 20])
def test_greedy_text_is_that_of_plain_decoding(
    target: Target, proposer: DFlashProposer, tree_nodes: int | None
) -> None:
    limits = Limits(max_new_tokens=40)
    plain = decode_plain(target, PROMPT, limits, generator())
    drafted = decode_drafted(target, proposer, PROMPT, limits, generator(), tree_nodes)
    assert drafted.token_ids == plain.token_ids
    assert len(plain.token_ids) == 40


@pytest.mark.lossless
def test_every_token_after_the_first_belongs_to_a_round(target: Target, proposer: DFlashProposer) -> None:
    for budget in range(1, 14):
        drafted = decode_drafted(target, proposer, PROMPT, Limits(max_new_tokens=budget), generator(), 8)
        emitted = sum(r.accepted + (not r.cut) for r in drafted.rounds)
        assert len(drafted.token_ids) == budget == 1 + emitted


@pytest.mark.lossless
def test_the_end_token_ends_the_text_inside_a_round(target: Target, proposer: DFlashProposer) -> None:
    plain = decode_plain(target, PROMPT, Limits(max_new_tokens=40), generator())
    end = plain.token_ids[20]
    limits = Limits(max_new_tokens=40, end_token_ids=frozenset({end}))
    expected = plain.token_ids[: plain.token_ids.index(end) + 1]
    assert decode_plain(target, PROMPT, limits, generator()).token_ids == expected
    assert decode_drafted(target, proposer, PROMPT, limits, generator()).token_ids == expected


@pytest.mark.lossless
@pytest.mark.parametrize("tree_nodes", [None, 8])
def test_an_oracle_is_accepted_whole(target: Target, tree_nodes: int | None) -> None:
    plain = decode_plain(target, PROMPT, Limits(max_new_tokens=37), generator()).token_ids
    oracle = Oracle(len(PROMPT), plain)
    drafted = decode_drafted(target, oracle, PROMPT, Limits(max_new_tokens=37), generator(), tree_nodes)
    assert drafted.token_ids == plain
    assert [r.accepted for r in drafted.rounds] == [5] * 6


@pytest.mark.lossless
def test_a_proposer_that_errs_in_its_third_slot_gains_three_tokens_a_round(target: Target) -> None:
    plain = decode_plain(target, PROMPT, Limits(max_new_tokens=31), generator()).token_ids
    oracle = Oracle(len(PROMPT), plain, num_right=2)
    drafted = decode_drafted(target, oracle, PROMPT, Limits(max_new_tokens=31), generator())
    assert drafted.token_ids == plain
    assert [(r.accepted, r.proposed) for r in drafted.rounds] == [(2, 5)] * 10


@pytest.mark.lossless
def test_prompt_lookup_changes_no_text_and_wins_where_the_text_repeats(target: Target) -> None:
    limits = Limits(max_new_tokens=24)
    plain = decode_plain(target, PROMPT, limits, generator())
    drafted = decode_drafted(target, PromptLookup(40, 5), PROMPT, limits, generator())
    assert drafted.token_ids == plain.token_ids
    quoting = [*PROMPT, *plain.token_ids, *PROMPT]
    repeats = decode_plain(target, quoting, limits, generator()).token_ids
    assert decode_drafted(target, PromptLookup(40, 5), quoting, limits, generator()).token_ids == repeats


def test_prompt_lookup_proposes_what_followed_the_longest_match_last() -> None:
    lookup = PromptLookup(10, num_proposals=3, longest=2)
    lookup.begin()
    lookup.read([1, 2, 3, 4, 1, 2, 5, 6, 7, 9, 1], torch.zeros(11, 0))
    assert lookup.propose(2).argmax(dim=-1).tolist() == [5, 6, 7]
    assert lookup.propose(8).shape == (0, 10)
    assert lookup.propose(4).argmax(dim=-1).tolist() == [1, 2, 5]


@pytest.mark.lossless
def test_a_hybrid_target_is_decoded_in_chains_and_refuses_trees(hybrid_target: Target) -> None:
    settings = DrafterSettings(num_layers=1, block_size=4, num_features=2)
    drafter = DFlashDrafter(configure(settings, hybrid_target.facts, mask_token_id=95))
    drafter.init_weights(torch.Generator().manual_seed(1))
    proposer, limits = DFlashProposer(hybrid_target, drafter.eval()), Limits(max_new_tokens=12)
    plain = decode_plain(hybrid_target, PROMPT, limits, generator())
    assert decode_drafted(hybrid_target, proposer, PROMPT, limits, generator()).token_ids == plain.token_ids
    with pytest.raises(ValueError, match="verify chains"):
        decode_drafted(hybrid_target, proposer, PROMPT, limits, generator(), 4)


@pytest.mark.lossless
@pytest.mark.parametrize("tree_nodes", [None, 3])
def test_sampled_texts_are_distributed_as_the_target_has_them(tree_nodes: int | None) -> None:
    """Chi-squared over all texts of three tokens; the bound is exceeded by chance once in some 30,000 runs."""
    target = MarkovTarget(torch.tensor([[1.0, 0.2, -0.5], [0.3, 0.3, 0.9], [-1.0, 0.8, 0.1]]))
    guesser = Guesser(torch.tensor([[-1.0, 1.5, 0.0], [0.4, -0.7, 1.1]]))
    random, runs, limits = generator(5), 1500, Limits(max_new_tokens=3, temperature=0.7)
    texts = list(itertools.product(range(3), repeat=3))
    counts = dict.fromkeys(texts, 0)
    for _ in range(runs):
        counts[tuple(decode_drafted(target, guesser, [1], limits, random, tree_nodes).token_ids)] += 1
    expected = {text: runs * target.probability(1, text, 0.7) for text in texts}
    squares = sum((counts[text] - expected[text]) ** 2 / expected[text] for text in texts)
    degrees = len(texts) - 1
    assert squares < degrees + 4.5 * (2 * degrees) ** 0.5
