"""Settings of the objective, apart from its mathematics so that `train --help` does not wait for torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """Frozen; a field it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class BlockSettings(Settings):
    """How many blocks a micro-batch trains."""

    anchors: int = Field(default=512, ge=1)
    """Blocks per micro-batch on one rank. With fewer eligible positions the rest are padding of weight zero."""


class LossSettings(Settings):
    """What a slot is taught and how much it counts."""

    soft_kl: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of KL(target || drafter) in the loss; the rest is cross-entropy on the sampled token."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Both distributions are softened by it before the KL, whose gradient is scaled back by its square."""
    cap: float = Field(default=0.0, ge=0.0)
    """Weight of the entropy of slots predicted right. It sharpens chains and can hurt trees."""
    weighting: Literal["gamma", "survival", "dpace"] = "gamma"
    """How a slot's weight falls along the block."""
    gamma: float | None = Field(default=None, gt=0.0)
    """Decay length in slots of `gamma` weighting; None: 7 for blocks of 16, 5 for 10, 4 for 8, and on those lines between."""
    survival_decay: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Per step, what the running estimate of P(streak >= s) keeps of its past, for `survival` weighting."""
    dpace_alpha: float = Field(default=0.5, ge=0.0, le=1.0)
    """D-PACE: how far a slot's probability is lifted towards 1 before they are multiplied along the block."""
    chunk_bytes: int = Field(default=1 << 27, ge=1)
    """Memory in bytes of one chunk's float32 logits."""
