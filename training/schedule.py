"""Who does what when: which rank trains which micro-batch of which step, and when held-out rows are measured.

Target ranks and drafter ranks read the same schedule, so one knows what the other will ask for.
"""

from __future__ import annotations

from collections.abc import Iterator

from training.batches import Batch
from training.heldout import heldout_parts
from training.job import Prepared


class Schedule:
    """The micro-batches of a run, for a number of drafter ranks."""

    def __init__(self, prepared: Prepared, num_drafters: int):
        self._prepared, self._num_drafters = prepared, num_drafters
        self._per_step = prepared.job.recipe.batches.per_step
        self._parts = heldout_parts(prepared)

    def step(self, step: int) -> list[tuple[int, int]]:
        """Return (index, drafter) of a step's micro-batches. Drafters rotate, so none gets one bucket's all the time."""
        return [(step * self._per_step + k, (k + step) % self._num_drafters) for k in range(self._per_step)]

    def mine(self, step: int, drafter: int) -> list[int]:
        """Return the indices of a step's micro-batches that one drafter rank trains."""
        return [index for index, whose in self.step(step) if whose == drafter]

    def batch(self, index: int) -> Batch:
        """Return the micro-batch at `index`, counted from the beginning of the run."""
        return self._prepared.store.pack(*self._prepared.order.batch(index))

    def measures_heldout(self, steps_done: int) -> bool:
        """Return whether held-out rows are measured after this many steps."""
        every, total = self._prepared.job.recipe.heldout.every, self._prepared.total_steps
        return bool(self._parts) and (steps_done % every == 0 or steps_done == total)

    def heldout(self) -> Iterator[tuple[Batch, int]]:
        """Yield every micro-batch of held-out rows with the drafter that walks it."""
        assert self._prepared.heldout is not None
        for number, part in enumerate(self._parts):
            yield self._prepared.heldout.pack(part, bucket=0), number % self._num_drafters
