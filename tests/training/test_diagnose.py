"""`drafter diagnose`: every fault is named in a run that has it, and a healthy run is left in peace."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks import diagnose as made_up
from training.diagnose import DiagnoseOptions, diagnose
from training.loss_bands import find_bands
from training.symptoms import find_symptoms

LOSS_OF_BUCKET = {"0": 1.35, "1": 1.0, "2": 0.75}
NUM_SLOTS = 7
CARD = {
    "total_steps": 4000,
    "recipe": {
        "blocks": {"anchors": 64},
        "batches": {"per_step": 2, "tokens": 2048},
        "logging": {"every": 10},
        "optimizer": {"clip_norm": 1.0},
        "placement": {"mode": "colocated"},
    },
    "buckets": [{"rows": 400, "batches": 80, "shortest": 40 * (n + 1), "longest": 40 * (n + 2)} for n in range(3)],
}


def run(faults: dict[str, Any] | None = None, records: int = 400, seed: int = 0) -> list[dict[str, Any]]:
    """A run whose loss falls as a power of the step, with three buckets in even shares, and the given faults.

    `leading(n)` gives the bucket that a record holds alone, `alter(record, n)` changes a record.
    """
    faults, dice, found = faults or {}, random.Random(seed), []
    for n in range(1, records + 1):
        step = 10 * n
        base = 2.0 + 5.0 * (step / 100 + 1) ** -0.7
        leading = faults["leading"](n) if "leading" in faults else None
        shares = {name: (name == leading) if leading is not None else 1 / 3 for name in LOSS_OF_BUCKET}
        buckets = {
            name: {"blocks": 1200 * share, "loss": base * factor * math.exp(dice.gauss(0, 0.02))}
            for (name, factor), share in zip(LOSS_OF_BUCKET.items(), shares.values(), strict=True)
            if share
        }
        domains = {name: {"blocks": 600.0, "loss": base * math.exp(dice.gauss(0, 0.02))} for name in ("code", "math")}
        accuracy = min(0.8, 0.1 + 0.1 * math.log10(step))
        record = {
            "kind": "train",
            "step": step,
            "blocks": 1200.0,
            "loss": sum(b["loss"] * b["blocks"] for b in buckets.values()) / sum(b["blocks"] for b in buckets.values()),
            "tau": 1.5 + 0.2 * math.log10(step),
            "by_bucket": buckets,
            "by_domain": domains,
            "learning_rate": 6e-4 * min(1.0, n / 16) * 0.5 * (1 + math.cos(math.pi * n / records)),
            "gradient_norm": 0.6 * math.exp(dice.gauss(0, 0.15)),
            "wait_frac": 0.01,
            "queue_depth": 4,
        } | {f"accuracy_slot_{s}": accuracy - 0.02 * s + dice.gauss(0, 0.005) for s in range(1, NUM_SLOTS + 1)}
        if "alter" in faults:
            faults["alter"](record, n)
        found.append(record)
        if n % 40 == 0:
            heldout = {"kind": "heldout", "step": step, "tau": 1.4 + 0.2 * math.log10(step), "by_domain": {}}
            if "heldout" in faults:
                heldout["tau"] = faults["heldout"](n)
            found.append(heldout)
    return found


def change(**fields: Any) -> dict[str, Any]:
    return {"alter": lambda record, n: record.update({k: v(n) if callable(v) else v for k, v in fields.items()})}


SHUFFLED = random.Random(7)
HOMOGENEOUS = {"leading": lambda n: SHUFFLED.choice("012")}
LADDER = {"leading": lambda n: "012"[n // 25 % 3]}
EVENLY = {"leading": lambda n: "012"[n % 3]}


@pytest.mark.parametrize("seed", range(8))
def test_a_healthy_run_is_left_in_peace(seed: int) -> None:
    assert find_symptoms(run(seed=seed), CARD) == []


def test_a_short_run_and_an_empty_one_say_nothing() -> None:
    assert find_symptoms(run(records=6), CARD) == []
    assert find_symptoms([], {}) == []


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "loss bands": (HOMOGENEOUS, "batches are homogeneous"),
    "loss ladder": (LADDER, "one after another"),
    "homogeneous batches": (HOMOGENEOUS, "does not mix"),
    "dead slot": (change(accuracy_slot_3=0.05), "shifted"),
    "gradient spikes": (change(gradient_norm=lambda n: 40.0 if n % 90 == 0 else 0.6), "pull hard"),
    "growing gradients": (change(gradient_norm=lambda n: 0.2 * math.exp(n / 120)), "diverge"),
    "always clipped": (change(gradient_norm=25.0), "clip norm"),
    "no gradient": (change(gradient_norm=0.0), "no block has a label"),
    "learning rate": (change(learning_rate=lambda n: 6e-4 * (1 - (n % 200) / 200)), "another schedule"),
    "not learning": (change(loss=9.0, tau=1.0), "features do not fit"),
    "waiting for data": (change(wait_frac=0.4, queue_depth=0), "too slowly"),
    "over-trained": ({"heldout": lambda n: 2.2 - abs(n - 160) / 400}, "by heart"),
    "training flatters": (change(tau=5.0), "by heart"),
    "anchors unused": (change(blocks=300.0), "fewer positions"),
}


@pytest.mark.parametrize("symptom", FAULTS)
def test_a_run_with_a_fault_is_told_its_name_and_cause(symptom: str) -> None:
    faults, cause = FAULTS[symptom]
    found = {finding.symptom: finding for finding in find_symptoms(run(faults), CARD)}
    assert symptom in found
    assert cause in found[symptom].cause
    assert found[symptom].knob


def test_a_trimodal_loss_is_counted_by_band_and_traced_to_its_buckets() -> None:
    bands = find_bands([record for record in run(HOMOGENEOUS) if record["kind"] == "train"])
    assert [(band.group, band.name) for band in bands] == [("bucket", "2"), ("bucket", "1"), ("bucket", "0")]
    assert all(abs(band.share - 1 / 3) < 0.08 for band in bands)
    assert [bands[0].loss / bands[1].loss, bands[2].loss / bands[1].loss] == pytest.approx([0.75, 1.35], rel=0.03)


def test_bands_by_domain_are_told_from_bands_by_bucket() -> None:
    dice = random.Random(3)

    def alter(record: dict[str, Any], n: int) -> None:
        code = dice.random() < 0.4
        record["loss"] *= 0.6 if code else 1.2
        record["by_domain"] = {
            "code": {"blocks": 1100.0 if code else 100.0},
            "math": {"blocks": 100.0 if code else 1100.0},
        }

    bands = find_bands([record for record in run({"alter": alter}) if record["kind"] == "train"])
    assert [(band.group, band.name) for band in bands] == [("domain", "code"), ("domain", "math")]


def test_noise_alone_makes_no_bands() -> None:
    for seed in range(10):
        dice = random.Random(seed)
        records = [{"step": n, "loss": 3 * math.exp(dice.gauss(0, 0.1))} for n in range(1, 300)]
        assert find_bands(records) == []


def test_buckets_that_take_turns_record_by_record_are_bands_but_no_ladder() -> None:
    names = {finding.symptom for finding in find_symptoms(run(EVENLY), CARD)}
    assert "loss bands" in names and "loss ladder" not in names


def test_short_rows_that_hardly_get_an_anchor_are_named_with_the_number_that_helps() -> None:
    card = CARD | {"buckets": [{"rows": 4000, "batches": 80, "shortest": 20, "longest": 60}]}
    (finding,) = find_symptoms(run(), card)
    assert finding.symptom == "few anchors per row" and "1.3 anchors a row" in finding.evidence
    assert "raise blocks.anchors to 448" in finding.knob


def test_skipped_steps_are_counted() -> None:
    records = [*run(), {"kind": "skip", "step": 77, "loss": None}]
    (finding,) = find_symptoms(records, CARD)
    assert finding.symptom == "steps left out" and "steps 77" in finding.evidence


def test_decoding_that_disagrees_with_training_is_a_fault_and_agreement_is_none() -> None:
    def evaluation(tau: float, **conditions: Any) -> dict[str, Any]:
        base = {"prompts": "held-out rows of the set", "temperature": 0}
        return {"conditions": base | conditions, "all": {"tau": tau, "tau_interval": [tau - 0.1, tau + 0.1]}}

    (finding,) = find_symptoms(run(), CARD, evaluation(1.1))
    assert (finding.symptom, finding.severity) == ("decoding disagrees", "fault")
    assert find_symptoms(run(), CARD, evaluation(2.1)) == []
    assert find_symptoms(run(), CARD, evaluation(1.1, temperature=0.7)) == []


def write(folder: Path, records: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    (folder / "run.json").write_text(json.dumps(CARD))
    return folder


def test_the_command_writes_what_it_says_and_a_page(tmp_path: Path) -> None:
    report = diagnose(DiagnoseOptions(run=write(tmp_path / "run", run(HOMOGENEOUS))))
    written = json.loads((tmp_path / "run" / "diagnosis.json").read_text())
    assert [finding["symptom"] for finding in written["findings"]] == ["loss bands", "homogeneous batches"]
    assert report["said"][0] == "fault: loss bands"
    shown = (tmp_path / "run" / "diagnosis.html").read_text()
    assert shown.count("<svg") == 9 and "batches are homogeneous" in shown and "<script" not in shown


def test_a_healthy_run_is_told_that_nothing_looks_wrong(tmp_path: Path) -> None:
    assert diagnose(DiagnoseOptions(run=write(tmp_path / "run", run())))["said"] == ["nothing looks wrong"]


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a training run"):
        diagnose(DiagnoseOptions(run=tmp_path))


def test_sound_runs_of_all_shapes_are_left_in_peace() -> None:
    named = {seed: made_up.symptoms(made_up.healthy(seed)) for seed in range(5000, 5060)}
    assert sum(map(bool, named.values())) <= 2, {seed: said for seed, said in named.items() if said}


@pytest.mark.parametrize("fault", made_up.FAULTS)
def test_a_fault_is_named_whatever_the_run_around_it(fault: str) -> None:
    missed = [seed for seed in range(300, 308) if fault not in made_up.symptoms(made_up.faulty(fault, seed))]
    assert not missed
