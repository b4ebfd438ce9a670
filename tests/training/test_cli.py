"""The commands `train` and `drafter`: quick to help, plain about mistakes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from training.cli import drafter_main, train_main

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run_train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["train", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            train_main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out + output.err

    return run


TINY = (
    *("--drafter.num-layers", 1, "--drafter.block-size", 4, "--drafter.num-features", 2, "--drafter.mask-token-id", 95),
    *("--blocks.anchors", 16, "--batches.tokens", 128, "--batches.max-length", 64, "--batches.per-step", 2),
    *("--heldout.rows", 0),
)


def test_train_writes_a_run_named_after_the_set(
    run_train: Run, tiny_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = run_train("--data", tiny_set, *TINY, "--max-steps", 3)
    assert code == 0 and "3 steps in" in said
    assert (tmp_path / "runs/tokenized_v1/step_3/checkpoint.pt").is_file()


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    run_train: Run, tiny_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = run_train("--data", tiny_set, *TINY, "--dry-run")
    assert code == 0 and "target weights" in said and "60 rows" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "nowhere"), "no set nowhere"),
        (("--data", "{empty}"), "has no set.json"),
        (("--data", "{set}", "--target", "{empty}"), "holds no config.json"),
        (("--data", "{set}", "--recipe", "nothing.yaml"), "no recipe 'nothing.yaml'"),
        (("--data", "{set}"), "holds no tokenizer to choose a mask token from"),
        (("--data", "{set}", "--drafter.mask-token-id", "99"), "outside the target's vocabulary"),
        (("--data", "{set}", *map(str, TINY), "--init-from", "{empty}"), "no checkpoint in"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    run_train: Run, tiny_set: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    filled = [part.format(set=tiny_set, empty=tmp_path / "empty") for part in arguments]
    code, said = run_train(*filled, "--out", tmp_path / "run")
    assert code == 2 and message in said
    assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1 and "Traceback" not in said


def test_an_unknown_field_on_the_command_line_is_exit_code_2(run_train: Run, tiny_set: Path) -> None:
    code, said = run_train("--data", tiny_set, "--optimizer.momentum", "1")
    assert code == 2 and "optimizer.momentum" in said


@pytest.mark.parametrize("command", [train_main, drafter_main], ids=["train", "drafter"])
def test_help_does_not_wait_for_torch(command: Callable[[], None]) -> None:
    script = f"import sys; sys.argv = ['x', '--help']\nfrom training.cli import {command.__name__} as main\ntry: main()\nexcept SystemExit: print([m for m in ('torch', 'transformers', 'pyarrow') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.rstrip().endswith("[]") and "usage:" in said
