"""The set as a format: what training reads, and what other people's loaders make of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest

from curation import arrow_sets, documents
from curation.documents import Document, TokenizedChunk
from curation.writing import Labels, write_folder_cards, write_shard
from datagen import shards

ROWS = [([5, 6, 7], [8, 2]), ([5], [9, 9, 9, 2]), ([4, 4], [3, 2])]


def _write_set(folder: Path, num_shards: int) -> Path:
    """A set of three rows over `num_shards` files, some of them empty."""
    work = folder.parent / "work"
    work.mkdir()
    chunk = TokenizedChunk(
        [Document(row, -1, np.array(prompt + answer), len(prompt)) for row, (prompt, answer) in enumerate(ROWS)]
    )
    documents.write_chunk(work, 0, chunk)
    loaded = documents.load(work, [0])
    labels = Labels(["a", "b", "c"], ["s", "s", "t"], ["code", "math", "code"])
    folder.mkdir()
    for index in range(num_shards):
        chosen = np.array([index] if index < len(ROWS) else [], dtype=np.int64)
        write_shard(folder / arrow_sets.shard_name(index, num_shards), loaded, labels, chosen)
    write_folder_cards(folder, num_shards, description="", fingerprint="0", split="train")
    shards.write_card(folder / arrow_sets.SET_CARD, {"rows": 3})
    return folder


def test_rows_come_back_in_order_from_full_and_empty_shards(tmp_path: Path) -> None:
    rows = list(arrow_sets.read_rows(_write_set(tmp_path / "set", 5)))
    assert [(row.input_ids, row.loss_mask) for row in rows] == [
        (prompt + answer, [0] * len(prompt) + [1] * len(answer)) for prompt, answer in ROWS
    ]
    assert [(row.id, row.source, row.domain) for row in rows] == [
        ("a", "s", "code"),
        ("b", "s", "math"),
        ("c", "t", "code"),
    ]
    assert arrow_sets.open_table(tmp_path / "set").schema.names == arrow_sets.SCHEMA.names


def test_datasets_opens_a_set_with_empty_shards(tmp_path: Path) -> None:
    import datasets

    loaded = datasets.load_from_disk(str(_write_set(tmp_path / "set", 45)))
    assert loaded[1]["input_ids"].tolist() == [5, 9, 9, 9, 2]
    assert loaded[1]["id"] == "b"
    assert loaded.with_format(None)["seq_len"][:] == [5, 5, 4]


@pytest.mark.parity
@pytest.mark.slow
def test_the_loader_of_speculators_trains_on_a_set_as_it_is(tmp_path: Path) -> None:
    data = pytest.importorskip("speculators.train.data")
    import torch
    from safetensors.torch import save_file

    folder = _write_set(tmp_path / "set", 2 + len(ROWS))
    (tmp_path / "states").mkdir()
    for index, (prompt, answer) in enumerate(ROWS):  # what speculators' own extraction leaves: [tokens, layers, width]
        ids = torch.tensor(prompt + answer)
        states = {"token_ids": ids, "hidden_states": torch.full((len(ids), 4, 8), float(index))}
        save_file(states, tmp_path / "states" / f"hs_{index}.safetensors")
    from hs_connectors import FileTransfer

    loaded = data.ArrowDataset(
        max_len=16, datapath=folder, transfer=FileTransfer(tmp_path / "states"), on_missing="raise"
    )
    assert loaded.approx_lengths == [5, 5, 4]
    batch = data.CollateFn(max_len=16, hidden_size=8)([loaded[index] for index in range(3)])
    assert batch["input_ids"][0].tolist() == [5, 6, 7, 8, 2, 5, 9, 9, 9, 2, 4, 4, 3, 2, 0, 0]
    assert batch["loss_mask"][0].tolist() == [0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0]
    assert batch["document_ids"][0].tolist() == [0] * 5 + [1] * 5 + [2] * 4 + [-1] * 2


def test_the_next_free_name_is_above_every_number_taken(tmp_path: Path) -> None:
    assert arrow_sets.next_free(tmp_path).name == "tokenized_v1"
    (tmp_path / "tokenized_v7").mkdir()
    (tmp_path / "tokenized_v2").mkdir()
    (tmp_path / ".tokenized_v9.building").mkdir()
    assert arrow_sets.next_free(tmp_path).name == "tokenized_v8"
    assert arrow_sets.next_free(tmp_path / "nowhere").name == "tokenized_v1"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", "no set .*; `curate build --balance` makes one"),
        ("no card", "has no set.json: not a set, or one whose build did not finish"),
        ("torn card", "set.json is not JSON"),
        ("no shards", "holds no data-.*arrow"),
    ],
)
def test_what_is_no_set_says_so_in_one_line(tmp_path: Path, damage: str, message: str) -> None:
    folder = tmp_path / "set"
    if damage != "missing":
        folder.mkdir()
    if damage == "torn card":
        (folder / arrow_sets.SET_CARD).write_bytes(b'{"rows":')
    with pytest.raises(ValueError, match=message):
        arrow_sets.open_table(folder) if damage == "no shards" else arrow_sets.read_set_card(folder)


def test_a_shard_of_a_set_is_either_whole_or_an_error_that_names_it(tmp_path: Path) -> None:
    folder = _write_set(tmp_path / "set", 3)
    shard = folder / arrow_sets.shard_name(1, 3)
    shard.write_bytes(shard.read_bytes()[:-200])
    with pytest.raises(ValueError, match="data-00001-of-00003.arrow is damaged"):
        arrow_sets.open_table(folder)


def test_a_missing_shard_is_noticed(tmp_path: Path) -> None:
    folder = _write_set(tmp_path / "set", 3)
    (folder / arrow_sets.shard_name(1, 3)).unlink()
    with pytest.raises(ValueError, match="lacks shards: found 2, the last named data-00002-of-00003.arrow"):
        arrow_sets.open_table(folder)


def test_the_features_are_those_of_the_schema(tmp_path: Path) -> None:
    import datasets

    info = orjson.loads((_write_set(tmp_path / "set", 1) / "dataset_info.json").read_bytes())
    assert datasets.Features.from_dict(info["features"]).arrow_schema.names == arrow_sets.SCHEMA.names
    assert datasets.Features.from_dict(info["features"]).arrow_schema.types == arrow_sets.SCHEMA.types


def test_reading_a_set_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "polars", "duckdb", "datasets", "pydantic")
    code = f"import sys, curation.arrow_sets; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
