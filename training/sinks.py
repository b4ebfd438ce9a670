"""Metric sinks: `metrics.jsonl` always, and what else the recipe asks for.

A sink takes one record at a time: a flat or nested dict of numbers with `kind` and `step`. Services are told the numbers under
slash-joined names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import orjson

from training.recipe import LoggingSettings

METRICS = "metrics.jsonl"


class Sink(Protocol):
    """Where records go."""

    def write(self, record: dict[str, Any]) -> None:
        """Take one record."""

    def close(self) -> None:
        """Flush and let go."""


class JsonLines:
    """`metrics.jsonl`: one record a line, on the disk when `write` returns."""

    def __init__(self, run: Path, step: int):
        """Open for appending after `step`: lines of later steps, which a killed run had written, are dropped first."""
        self.path = run / METRICS
        if self.path.is_file():
            _drop_later_lines(self.path, step)
        self._file = self.path.open("ab")

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(orjson.dumps(record) + b"\n")
        self._file.flush()

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


class WandbSink:
    """Weights & Biases; the key comes from its own environment variables."""

    def __init__(self, settings: LoggingSettings, run: Path, recipe: dict[str, Any]):
        import wandb

        self._run = wandb.init(
            project=settings.project, name=run.name, config=recipe, dir=str(run), id=run.name, resume="allow"
        )

    def write(self, record: dict[str, Any]) -> None:
        self._run.log(flatten(record), step=record["step"])

    def close(self) -> None:
        self._run.finish()


class TrackioSink:
    """trackio, a local dashboard."""

    def __init__(self, settings: LoggingSettings, run: Path, recipe: dict[str, Any]):
        import trackio

        self._run = trackio.init(project=settings.project, name=run.name, config=recipe)

    def write(self, record: dict[str, Any]) -> None:
        self._run.log(flatten(record), step=record["step"])

    def close(self) -> None:
        self._run.finish()


class TensorBoardSink:
    """TensorBoard event files in `run/tensorboard`."""

    def __init__(self, settings: LoggingSettings, run: Path, recipe: dict[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"))

    def write(self, record: dict[str, Any]) -> None:
        for name, value in flatten(record).items():
            self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self._writer.close()


SERVICES: dict[str, type[WandbSink | TrackioSink | TensorBoardSink]] = {
    "wandb": WandbSink,
    "trackio": TrackioSink,
    "tensorboard": TensorBoardSink,
}


def open_sinks(settings: LoggingSettings, run: Path, recipe: dict[str, Any], step: int) -> list[Sink]:
    """Return the sinks of a run that goes on after `step`.

    Raises:
        ValueError: a service's package is not installed.
    """
    sinks: list[Sink] = [JsonLines(run, step)]
    for name in settings.sinks:
        try:
            sinks.append(SERVICES[name](settings, run, recipe))
        except ImportError as error:
            raise ValueError(
                f"logging.sinks has {name}, which is not installed: pip install 'draftmill[{name}]'"
            ) from error
    return sinks


def flatten(record: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a nested record under slash-joined names, below its `kind`; `step` is left out."""
    prefix = prefix or f"{record['kind']}/"
    flat: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "step":
            flat[f"{prefix}{name}"] = value
    return flat


def read_records(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's metrics.jsonl, in order; a line torn by a kill is left out."""
    path = run / METRICS
    if not path.is_file():
        raise ValueError(f"{run} has no {METRICS}: not a training run, or one that has not begun")
    return [orjson.loads(line) for line in _whole_lines(path)]


def _whole_lines(path: Path) -> list[bytes]:
    text = path.read_bytes()
    return text[: text.rfind(b"\n") + 1].splitlines()


def _drop_later_lines(path: Path, step: int) -> None:
    kept = [line for line in _whole_lines(path) if orjson.loads(line)["step"] <= step]
    temporary = path.with_suffix(".jsonl.tmp")
    with temporary.open("wb") as file:
        file.writelines(line + b"\n" for line in kept)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
