"""Remembered features are those of the target, and the target runs once per document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from training.batches import Batch
from training.feature_cache import RememberingTarget
from training.features import LocalTarget
from training.target import Features, Target

LAYERS = (1, 3)


class CountingTarget(LocalTarget):
    """A target that counts the documents it runs on."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.documents = 0
        self.features = self._count  # type: ignore[method-assign, assignment]  # LocalTarget binds it per instance

    def _count(self, batch: Batch, layer_ids: tuple[int, ...]) -> Features:
        self.documents += len(batch.row_ids)
        return self._target.features(batch, layer_ids)


def test_remembered_features_are_the_targets(target: Target, random_batch: Callable[..., Batch]) -> None:
    batch = random_batch([9, 14, 6])
    expected = target.features(batch, LAYERS)
    remembering = RememberingTarget(LocalTarget(target), budget_bytes=1 << 20)
    for _ in range(2):
        found = remembering.features(batch, LAYERS)
        torch.testing.assert_close(found.hidden_TF, expected.hidden_TF)
        torch.testing.assert_close(found.final_TH, expected.final_TH)


def test_a_document_gets_the_same_bits_in_whatever_batch_it_comes(
    target: Target, random_batch: Callable[..., Batch]
) -> None:
    whole = random_batch([9, 14, 6])
    first = RememberingTarget(LocalTarget(target), 1 << 20).features(whole, LAYERS)
    later = RememberingTarget(LocalTarget(target), 0)
    reordered = torch.nonzero(whole.document_T == 1).squeeze(1)
    alone = replace(
        whole,
        input_ids_T=whole.input_ids_T[reordered],
        document_T=torch.zeros(len(reordered), dtype=torch.int64),
        position_T=whole.position_T[reordered],
        loss_mask_T=whole.loss_mask_T[reordered],
        row_ids=whole.row_ids[1:2],
        domains=whole.domains[1:2],
    )
    assert torch.equal(later.features(alone, LAYERS).hidden_TF, first.hidden_TF[reordered])


def test_the_target_runs_once_per_document_while_the_budget_lasts(
    target: Target, random_batch: Callable[..., Batch]
) -> None:
    batch = random_batch([9, 14, 6])
    counting = CountingTarget(target)
    remembering = RememberingTarget(counting, budget_bytes=1 << 20)
    assert [one.row_ids for one, _ in remembering.stream([batch, batch, batch], LAYERS)] == [batch.row_ids] * 3
    assert counting.documents == 3

    counting.documents = 0
    forgetful = RememberingTarget(counting, budget_bytes=0)
    forgetful.features(batch, LAYERS)
    forgetful.features(batch, LAYERS)
    assert counting.documents == 6
