"""Published mixes: what other people's post-training data is made of, by rows, to hold a profile against.

Shares are computed from the row counts that the publishers state; multilingual splits count as `multilingual`, STEM as
`science`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mix:
    """A mix with a name and where its numbers are stated."""

    name: str
    origin: str
    rows: dict[str, float]
    """Rows (or relative weights) by domain."""

    def shares(self) -> dict[str, float]:
        """Return the share of each domain; they sum to 1."""
        total = sum(self.rows.values())
        return {domain: rows / total for domain, rows in self.rows.items()}


BALANCED_PILOT = Mix(
    "balanced pilot",
    "weights of a balanced 100K drafter pilot over Nemotron v2: math 25, science 25, code 20, chat 20, multilingual 10",
    {"math": 25, "science": 25, "code": 20, "chat": 20, "multilingual": 10},
)
"""What a profile without a target of its own is held against."""

PUBLISHED = (
    BALANCED_PILOT,
    Mix(
        "Nemotron v2, English",
        "dataset card of nvidia/Nemotron-Post-Training-Dataset-v2, splits chat, stem, math, code",
        {"chat": 627_720, "science": 355_000, "math": 239_467, "code": 175_000},
    ),
    Mix(
        "Nemotron v2, all",
        "dataset card of nvidia/Nemotron-Post-Training-Dataset-v2, all splits",
        {"chat": 627_720, "science": 355_000, "math": 239_467, "code": 175_000, "multilingual": 4_944_227},
    ),
    Mix(
        "Nemotron v1",
        "dataset card of nvidia/Nemotron-Post-Training-Dataset-v1",
        {"science": 20_662_167, "math": 2_044_407, "code": 1_896_395, "chat": 746_622, "tool_use": 310_051},
    ),
    Mix(
        "Llama-Nemotron, used in training",
        "discussion 9 of nvidia/Llama-Nemotron-Post-Training-Dataset, SFT rows with used_in_training = yes",
        {"code": 695_510, "science": 708_920, "math": 220_011, "chat": 39_792, "safety": 31_426},
    ),
    Mix(
        "Open-PerfectBlend",
        "dataset card of mlabonne/open-perfectblend, published rows by the purpose of each source",
        {"math": 585_750, "reasoning": 272_266, "chat": 390_129, "code": 111_272, "instruction_following": 61_492},
    ),
)
