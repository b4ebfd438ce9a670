"""`curate export`: the rows of a set, in its order, in the shapes of other trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from curation import arrow_sets
from curation.build import build
from curation.export import export
from curation.options import BuildOptions, ExportOptions
from datagen import shards


def _row(number: int) -> dict[str, Any]:
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
    question = " ".join(words[(number * k) % 10] + str(number * k) for k in range(1, 15))
    return {
        "id": f"{number:032x}",
        "source": "made",
        "domain": "chat",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}],
        "completion": f"answer {number} of several words",
        "reasoning": "because" if number % 2 else None,
        "prompt_token_ids": [number, 1],
        "completion_token_ids": [number, 3, 2],
        "finish_reason": "stop",
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    (folder / "completions_raw").mkdir()
    shards.publish(
        folder / "completions_raw" / shards.shard_name(0), [shards.encode_row(_row(n)) for n in range(1, 41)]
    )
    return build(BuildOptions(input=folder / "completions_raw", out=folder / "tokenized_v1", shards=3)).folder


def _lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("to", ["specforge", "openai", "sharegpt", "specforge_tokens"])
def test_every_row_is_there_once_in_the_order_of_the_set(built: Path, tmp_path: Path, to: Any) -> None:
    exported = export(ExportOptions(folder=built, to=to, out=tmp_path / "out"))
    card = arrow_sets.read_set_card(built)
    assert exported.rows == {"train": card["rows"], "heldout": card["heldout"]["rows"]}
    rows = _lines(tmp_path / "out" / "train.jsonl")
    if to != "openai":
        assert [row["id"] for row in rows] == [row.id for row in arrow_sets.read_rows(built)]


def test_specforge_rows_are_conversations_with_the_thinking_apart(built: Path, tmp_path: Path) -> None:
    export(ExportOptions(folder=built, out=tmp_path / "out"))
    row = next(row for row in _lines(tmp_path / "out" / "train.jsonl") if int(row["id"], 16) % 2)
    origin = _row(int(row["id"], 16))
    assert row["conversations"] == [
        *origin["messages"],
        {"role": "assistant", "content": origin["completion"], "reasoning_content": "because"},
    ]


def test_token_rows_need_no_completions_and_keep_ids_and_masks(built: Path, tmp_path: Path) -> None:
    options = ExportOptions(folder=built, to="specforge_tokens", out=tmp_path / "out", input=tmp_path / "nowhere")
    export(options)
    for line, row in zip(_lines(tmp_path / "out" / "train.jsonl"), arrow_sets.read_rows(built), strict=True):
        assert (line["input_ids"], line["loss_mask"]) == (row.input_ids, row.loss_mask)


def test_completions_that_are_gone_are_one_clear_line(built: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shards.publish(other / shards.shard_name(0), [shards.encode_row(_row(1))])
    with pytest.raises(ValueError, match="rows of .* are not in .*; give --input"):
        export(ExportOptions(folder=built, out=tmp_path / "out", input=other))
    with pytest.raises(ValueError, match="no folder .*gone with the completions behind"):
        export(ExportOptions(folder=built, out=tmp_path / "out2", input=tmp_path / "gone"))
    with pytest.raises(ValueError, match="no set .*; `curate build --balance` makes one"):
        export(ExportOptions(folder=tmp_path / "no set"))
