"""The frozen target: features as transformers has them, packing, and a cache that rolls back."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config

from training.target import Target, choose_mask_token, read_target_facts

LAYERS = (1, 3, 5)


@pytest.mark.parity
def test_features_are_the_outputs_of_the_layers_as_transformers_numbers_them(any_target, random_batch):
    batch = random_batch([9], padding=0)
    found = any_target.features(batch, LAYERS)
    out = any_target.model(input_ids=batch.input_ids_T[None], output_hidden_states=True)
    expected = torch.cat([out.hidden_states[layer + 1][0] for layer in LAYERS], dim=-1)
    torch.testing.assert_close(found.hidden_TF, expected, rtol=0, atol=0)
    torch.testing.assert_close(any_target.logits(found.final_TH), out.logits[0], rtol=0, atol=0)


@pytest.mark.parity
def test_packed_documents_have_the_features_that_each_has_alone(any_target, random_batch):
    batch = random_batch([9, 14, 5])
    together = any_target.features(batch, LAYERS)
    assert not together.hidden_TF[batch.document_T < 0].any()
    for document in range(3):
        rows = batch.document_T == document
        out = any_target.model(input_ids=batch.input_ids_T[rows][None], output_hidden_states=True)
        alone = torch.cat([out.hidden_states[layer + 1][0] for layer in LAYERS], dim=-1)
        torch.testing.assert_close(together.hidden_TF[rows], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.leak
def test_features_before_a_changed_token_stay_the_same_to_the_bit(any_target, random_batch):
    batch = random_batch([9, 14, 5])
    before = any_target.features(batch, LAYERS)
    batch.input_ids_T[9 + 6] = (batch.input_ids_T[9 + 6] + 1) % 90
    after = any_target.features(batch, LAYERS)
    same = torch.ones_like(batch.loss_mask_T)
    same[9 + 6 : 9 + 14] = False
    assert torch.equal(before.hidden_TF[same], after.hidden_TF[same])
    assert torch.equal(before.final_TH[same], after.final_TH[same])
    assert not torch.equal(before.hidden_TF[9 + 6], after.hidden_TF[9 + 6])


def test_the_last_layer_is_refused(target, random_batch):
    with pytest.raises(ValueError, match="last layer"):
        target.features(random_batch([9]), (1, 7))


@pytest.mark.parity
def test_reading_in_steps_with_rollbacks_equals_reading_at_once(any_target, random_batch):
    ids = random_batch([30], padding=0).input_ids_T
    wrong = (ids + 1) % 90
    cache = any_target.open_cache()
    steps = [any_target.extend(cache, ids[:7], LAYERS)]
    for start, stop, rejected in ((7, 10, 4), (10, 11, 0), (11, 12, 5), (12, 18, 0), (18, 19, 1), (19, 30, 0)):
        step = any_target.extend(cache, torch.cat([ids[start:stop], wrong[stop : stop + rejected]]), LAYERS)
        any_target.rollback(cache, stop)
        steps.append(step)
        assert cache.length == stop
        length = stop - start
        steps[-1] = (step.logits_NV[:length], step.features_NF[:length])
    logits = torch.cat([steps[0].logits_NV, *(logits for logits, _ in steps[1:])])
    features = torch.cat([steps[0].features_NF, *(features for _, features in steps[1:])])
    at_once = any_target.model(input_ids=ids[None], output_hidden_states=True)
    torch.testing.assert_close(logits, at_once.logits[0], rtol=1e-4, atol=1e-5)
    expected = torch.cat([at_once.hidden_states[layer + 1][0] for layer in LAYERS], dim=-1)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parity
def test_a_tree_is_read_as_each_of_its_paths_would_be_and_one_path_is_kept(target, random_batch):
    ids = random_batch([20], padding=0).input_ids_T
    cache = target.open_cache()
    target.extend(cache, ids[:6], ())
    # root 6; children 7 and 11; 7 has child 8; 11 has child 12.
    nodes = ids[torch.tensor([6, 7, 11, 8, 12])]
    depth = torch.tensor([0, 1, 1, 2, 2])
    parents = [-1, 0, 0, 1, 2]
    ancestors = torch.eye(5, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            ancestors[node] |= ancestors[parent]
    tree = target.extend(cache, nodes, LAYERS, depth, ancestors)
    path = torch.cat([ids[:7], ids[11:13]])
    expected = target.model(input_ids=path[None]).logits[0]
    torch.testing.assert_close(tree.logits_NV[[0, 2, 4]], expected[6:], rtol=1e-4, atol=1e-5)

    target.keep(cache, torch.tensor([0, 2, 4]))
    assert cache.length == 9
    following = target.extend(cache, ids[13:15], LAYERS)
    expected = target.model(input_ids=torch.cat([path, ids[13:15]])[None]).logits[0]
    torch.testing.assert_close(following.logits_NV, expected[9:], rtol=1e-4, atol=1e-5)


def test_a_recurrent_target_refuses_trees(hybrid_target):
    with pytest.raises(ValueError, match="verify chains"):
        hybrid_target.extend(
            hybrid_target.open_cache(), torch.arange(2), (), torch.arange(2), torch.ones(2, 2).tril().bool()
        )


def test_a_target_that_caps_its_logits_is_refused():
    config = Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, final_logit_softcapping=0.001,
    )  # fmt: skip
    with pytest.raises(ValueError, match="caps its logits"):
        Target(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def test_a_missing_target_is_one_clear_error(tmp_path):
    with pytest.raises(ValueError, match="cannot load the target"):
        Target.load(str(tmp_path / "nothing"), torch.float32)
    with pytest.raises(ValueError, match="cannot read the target's configuration"):
        read_target_facts(str(tmp_path / "nothing"))


class _Tokenizer:
    """The four things that are asked of a tokenizer."""

    bos_token_id, eos_token_id, pad_token_id = 1, 2, 2
    chat_template = "<|im_start|>{{ content }}<|im_end|>"

    def __init__(self, size: int, names: dict[int, str]) -> None:
        from tokenizers import AddedToken

        self.size = size
        self.added_tokens_decoder = {i: AddedToken(name, special=True) for i, name in names.items()}

    def __len__(self) -> int:
        return self.size


def test_the_mask_token_is_an_embedding_row_that_no_token_uses():
    assert choose_mask_token(_Tokenizer(90, {}), 96) == 90


def test_without_such_a_row_the_mask_token_is_a_spare_special_token():
    names = {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>", 3: "<repo_name>", 4: "<file_sep>"}
    assert choose_mask_token(_Tokenizer(96, names), 96) == 3


def test_without_any_spare_token_the_error_says_what_to_set():
    with pytest.raises(ValueError, match="set drafter.mask_token_id"):
        choose_mask_token(_Tokenizer(96, {1: "<|im_start|>", 2: "<|im_end|>"}), 96)
