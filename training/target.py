"""The frozen target: its features for training, and a cache that can be rolled back for decoding.

Features are the outputs of chosen decoder layers, caught by hooks as the layers run, so only what is asked for is kept: the
lm_head is not run and the other hidden states are not stored. Packed documents are run as right-padded rows, which a causal
model needs no mask for and which hybrid targets (linear attention) understand as well. Layer j is the output of decoder
layer j, `hidden_states[j + 1]` in transformers; the last is never handed out un-normed.

Letters: T packed tokens, N new tokens, H width, F = features x width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from training.drafter_config import ROPE_TYPES, TargetFacts, check_target_layer_ids
from training.target_cache import TargetCache, restore_states, save_states, tree_mask

if TYPE_CHECKING:
    from training.batches import Batch

ROPE_FIELDS = (
    "rope_type", "rope_theta", "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
    "low_freq_factor", "high_freq_factor", "mscale", "mscale_all_dim", "truncate",
)  # fmt: skip
"""What a drafter inherits of the target's rotary embedding; multimodal sections and partial factors are the target's own."""

SPARE_WORDS = (
    "mask",
    "reserved",
    "unused",
    "extra",
    "placeholder",
    "dummy",
    "repo",
    "file",
    "fim",
    "jupyter",
    "gh_",
    "issue",
)
"""Parts of the names of special tokens that chat text does not contain, likeliest first."""


@dataclass(frozen=True)
class Features:
    """What the target says about packed documents. Rows of padding tokens are zero."""

    hidden_TF: Tensor
    """Outputs of the chosen layers, one after another, in the target's dtype."""
    final_TH: Tensor
    """Last hidden state after the final norm; times lm_head it is the logits of the next token."""


@dataclass(frozen=True)
class Step:
    """What the target says about N tokens read on top of a cache."""

    logits_NV: Tensor
    """Logits of the token after each."""
    features_NF: Tensor
    """Outputs of the chosen layers, one after another."""


class Target:
    """A frozen causal language model of transformers."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval().requires_grad_(False)
        self.decoder = model.get_decoder()
        self.facts = target_facts(model.config)
        self.embed_VH: Tensor = model.get_input_embeddings().weight
        self.head_VH: Tensor = model.get_output_embeddings().weight
        self._check_head()

    @classmethod
    def load(
        cls, model: str, dtype: torch.dtype, device: torch.device | str = "cpu", trust_remote_code: bool = False
    ) -> Target:
        """Return the target in a folder or on the hub, in `dtype` on `device`.

        Raises:
            ValueError: the model cannot be read, or makes its logits in a way that a drafter cannot share.
        """
        try:
            loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, trust_remote_code=trust_remote_code)
        except OSError as error:
            raise ValueError(f"cannot load the target {model}: {error}") from error
        return cls(loaded.to(device))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_VH.device

    def embed(self, ids: Tensor) -> Tensor:
        """Return rows [..., H] of the embedding for token ids [...], unscaled: so z-lab and the engines feed a drafter."""
        return nn.functional.embedding(ids, self.embed_VH)

    def logits(self, final_NH: Tensor) -> Tensor:
        """Return [..., V] of final-normed hidden states [..., H].

        A slice is copied first: as it is, a CPU would multiply it row by row, a hundred times slower.
        """
        return nn.functional.linear(final_NH.to(self.head_VH.dtype).contiguous(), self.head_VH)

    @torch.no_grad()
    def features(self, batch: Batch, layer_ids: tuple[int, ...]) -> Features:
        """Return the features of a packed micro-batch, each document run on its own."""
        check_target_layer_ids(layer_ids, self.facts.num_layers)
        real_T = batch.document_T >= 0
        row_N, column_N = batch.document_T[real_T], batch.position_T[real_T]
        ids = batch.input_ids_T.new_zeros(int(row_N.max()) + 1, int(column_N.max()) + 1)
        ids[row_N, column_N] = batch.input_ids_T[real_T]
        with self._caught(layer_ids) as caught:
            final = self.decoder(input_ids=ids, use_cache=False).last_hidden_state
        width = self.facts.hidden_size
        hidden_TF = final.new_zeros(real_T.shape[0], len(layer_ids) * width)
        for place, layer in enumerate(layer_ids):
            hidden_TF[real_T, place * width : (place + 1) * width] = caught[layer][row_N, column_N]
        final_TH = final.new_zeros(real_T.shape[0], width)
        final_TH[real_T] = final[row_N, column_N]
        return Features(hidden_TF, final_TH)

    def open_cache(self) -> TargetCache:
        """Return the cache of an empty text."""
        return TargetCache(self.model.config)

    @torch.no_grad()
    def extend(
        self,
        cache: TargetCache,
        ids_N: Tensor,
        layer_ids: tuple[int, ...],
        depth_N: Tensor | None = None,
        ancestors_NN: Tensor | None = None,
    ) -> Step:
        """Read N tokens on top of the cache and return what the target says about each.

        For a draft tree, `depth_N` is every token's distance from the end of the cache (0 for its root) and `ancestors_NN` (bool)
        says which of the N tokens each may see, itself included; follow it with `keep`.

        Raises:
            ValueError: a tree, and a target whose cache cannot hold one.
        """
        if ancestors_NN is not None and (cache.recurrent or cache.sliding):
            raise ValueError(
                "this target has recurrent or sliding-window layers, whose cache holds one text and no tree; verify chains instead"
            )
        cache.saved = [save_states(layer) for layer in cache.states.layers] if cache.recurrent else []
        cache.last_ids = ids_N
        position_N = cache.length + (torch.arange(ids_N.numel(), device=ids_N.device) if depth_N is None else depth_N)
        with self._caught(layer_ids) as caught:
            final = self.decoder(
                input_ids=ids_N[None],
                position_ids=position_N[None],
                attention_mask=None
                if ancestors_NN is None
                else tree_mask(cache.length, ancestors_NN, self.embed_VH.dtype),
                past_key_values=cache.states,
                use_cache=True,
            ).last_hidden_state[0]
        cache.length += ids_N.numel()
        features = [caught[layer][0] for layer in layer_ids]
        return Step(self.logits(final), torch.cat(features, dim=-1) if features else final.new_empty(final.shape[0], 0))

    @torch.no_grad()
    def rollback(self, cache: TargetCache, length: int) -> None:
        """Forget all but the first `length` tokens, which must reach back to before the last `extend` at most.

        Attention layers drop keys and values. Recurrent layers return to their state before the last `extend` and read the
        tokens that stay once more: one further forward pass, and only where something is dropped.
        """
        assert cache.last_ids is not None and cache.length - cache.last_ids.numel() <= length <= cache.length
        if not cache.recurrent:
            cache.states.crop(length - cache.length)
            cache.length = length
            return
        if length == cache.length:
            return
        before = cache.length - cache.last_ids.numel()
        stays = cache.last_ids[: length - before]
        for layer, saved in zip(cache.states.layers, cache.saved, strict=True):
            restore_states(layer, saved, before - cache.length)
        cache.length = before
        if stays.numel():
            self.extend(cache, stays, ())

    @torch.no_grad()
    def keep(self, cache: TargetCache, nodes: Tensor) -> None:
        """Of the tokens of the last `extend`, keep those at `nodes` (int64, ascending: a path of the tree), in that order."""
        assert cache.last_ids is not None
        before = cache.length - cache.last_ids.numel()
        kept = torch.cat([torch.arange(before, device=nodes.device), before + nodes])
        for layer in cache.states.layers:
            layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
        cache.length = before + nodes.numel()

    @contextmanager
    def _caught(self, layer_ids: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
        """Collect the outputs of the layers, by number, of whatever runs inside."""
        caught: dict[int, Tensor] = {}

        def catch(layer: int) -> Any:
            def hook(module: nn.Module, inputs: Any, output: Tensor | tuple[Tensor, ...]) -> None:
                caught[layer] = output if isinstance(output, Tensor) else output[0]

            return hook

        handles = [self.decoder.layers[layer].register_forward_hook(catch(layer)) for layer in layer_ids]
        try:
            yield caught
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def _check_head(self) -> None:
        """Refuse a target whose logits are not lm_head(final hidden state): a drafter that shares the head would be wrong."""
        probe = torch.arange(4, device=self.device)[None]
        expected = self.model(input_ids=probe, use_cache=False).logits[0].float()
        found = self.logits(self.decoder(input_ids=probe, use_cache=False).last_hidden_state[0]).float()
        if not torch.allclose(expected, found, atol=1e-3 + 0.02 * float(expected.abs().max())):
            raise ValueError(
                f"{type(self.model).__name__} scales or caps its logits after lm_head; a drafter shares the bare lm_head, "
                "so this target is not supported"
            )


def target_facts(config: Any) -> TargetFacts:
    """Return the facts in a transformers configuration of a target."""
    text = config.get_text_config()
    rope = dict(getattr(text, "rope_parameters", None) or {})
    rope = rope.get("full_attention", rope)
    rope = {name: rope[name] for name in ROPE_FIELDS if rope.get(name) is not None}
    if rope.get("rope_type", "default") not in ROPE_TYPES:
        rope = {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)}
    return TargetFacts(
        hidden_size=text.hidden_size,
        num_layers=text.num_hidden_layers,
        vocab_size=text.vocab_size,
        intermediate_size=getattr(text, "intermediate_size", None),
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        rms_norm_eps=getattr(text, "rms_norm_eps", 1e-6),
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0} | rope,
        max_position_embeddings=text.max_position_embeddings,
    )


def read_target_facts(model: str, trust_remote_code: bool = False) -> TargetFacts:
    """Return the facts of a target in a folder or on the hub, reading its configuration only."""
    try:
        return target_facts(AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code))
    except OSError as error:
        raise ValueError(f"cannot read the target's configuration {model}: {error}") from error


def choose_mask_token(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> int:
    """Return a token id that never occurs in text: an embedding row past the tokenizer's last token where there is one (what
    z-lab takes for Qwen3), else a special token that neither ends, pads nor formats a chat.

    Raises:
        ValueError: every token may occur; says what to set.
    """
    if len(tokenizer) < vocab_size:
        return len(tokenizer)
    in_use = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    template = tokenizer.chat_template or ""
    spare = {
        str(token): token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.special and token_id not in in_use and str(token) not in str(template)
    }
    for word in SPARE_WORDS:
        for name in sorted(spare):
            if word in name.lower():
                return spare[name]
    raise ValueError(
        "no token of the target's vocabulary is plainly unused; set drafter.mask_token_id to one that never occurs in your "
        f"data (special tokens that the chat template does not use: {', '.join(sorted(spare)[:8]) or 'none'})"
    )
