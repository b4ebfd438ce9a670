"""Steps that go wrong: a loss that is no number, or far above its running mean. They are named, written down, and left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from training.job import Prepared
from training.recipe import GuardSettings

if TYPE_CHECKING:
    from training.state import State

MEAN_DECAY = 0.98
"""What the running mean of the loss keeps of its past at every step: a memory of about 50 steps."""


class Guard:
    """Judges every step by the losses of its micro-batches."""

    def __init__(self, settings: GuardSettings, prepared: Prepared):
        self._settings, self._prepared = settings, prepared

    def judge(self, state: State, sums: Tensor, gradient_norm: float) -> dict[str, Any] | None:
        """Return what is wrong with a step, None where nothing is; then the running mean moves.

        Args:
            state: before the step; `mean_loss` is moved.
            sums: float64 [per_step, 2], loss and weight of every micro-batch.
            gradient_norm: of the whole step.
        """
        loss = float(sums[:, 0].sum() / sums[:, 1].sum())
        ceiling = math.inf if state.mean_loss is None else self._settings.spike_factor * state.mean_loss
        if math.isfinite(loss) and math.isfinite(gradient_norm) and loss <= ceiling:
            mean = loss if state.mean_loss is None else state.mean_loss
            state.mean_loss = MEAN_DECAY * mean + (1 - MEAN_DECAY) * loss
            return None
        losses = (sums[:, 0] / sums[:, 1]).tolist()
        guilty = [k for k, value in enumerate(losses) if not value <= ceiling or not math.isfinite(value)]
        reason = (
            f"loss {loss:.4g} against a mean of {state.mean_loss:.4g}"
            if loss > ceiling
            else "loss or gradient is no number"
        )
        return {
            "reason": reason,
            "micro_batches": [self._name(state.step, k, losses[k]) for k in guilty or range(len(losses))],
        }

    def _name(self, step: int, place: int, loss: float) -> dict[str, Any]:
        index = step * self._prepared.job.recipe.batches.per_step + place
        rows, bucket = self._prepared.order.batch(index)
        loss_or_none = loss if math.isfinite(loss) else None
        return {"index": index, "bucket": bucket, "loss": loss_or_none, "row_ids": self._prepared.store.row_ids(rows)}
