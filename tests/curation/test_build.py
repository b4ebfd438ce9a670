"""`curate build`, on shards as datagen writes them: complete sets, exact funnels, the same bytes, and clear refusals."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pytest

from curation import arrow_sets
from curation.build import Built, build
from curation.options import BuildOptions
from datagen import shards

NUM_ROWS = {"code": 308, "math": 40, "chat": 30, "writing": 22}
TARGETS = {"code": 25, "math": 25, "chat": 25, "writing": 25}
WORDS = [
    f"{a}{b}"
    for a in ("ba", "ke", "lo", "mi", "nu", "po", "ra", "su")
    for b in ("dan", "fer", "gil", "hom", "jun", "kip")
]


def _row(number: int, domain: str, dice: random.Random) -> dict[str, Any]:
    """A generation of our own format: random words, so that no two prompts are alike."""
    prompt_ids = [dice.randrange(1000) for _ in range(dice.randrange(8, 30))]
    completion_ids = [dice.randrange(1000) for _ in range(dice.randrange(20, 120))] + [2]
    return {
        "id": hashlib.sha256(f"{domain}{number}".encode()).hexdigest()[:32],
        "source": f"{domain}_{number % 2}",
        "domain": domain,
        "messages": [{"role": "user", "content": " ".join(dice.choices(WORDS, k=25))}],
        "completion": " ".join(dice.choices(WORDS, k=40)),
        "reasoning": None,
        "prompt_token_ids": prompt_ids,
        "completion_token_ids": completion_ids,
        "finish_reason": "stop",
        "sampling": {"temperature": 0.7},
        "seed": number,
    }


def _rows() -> list[dict[str, Any]]:
    dice = random.Random(0)
    rows = [_row(number, domain, dice) for domain, count in NUM_ROWS.items() for number in range(count)]
    dice.shuffle(rows)
    return rows


def _write(folder: Path, rows: list[dict[str, Any]], shard_rows: int = 100, **target: Any) -> Path:
    """Write a completions folder as datagen does, run card included."""
    folder.mkdir(parents=True)
    for index, start in enumerate(range(0, len(rows), shard_rows)):
        lines = [shards.encode_row(row) for row in rows[start : start + shard_rows]]
        shards.publish(folder / shards.shard_name(index), lines)
    sources = [
        {"name": f"{domain}_{half}", "files": "x.jsonl", "domain": domain, "license": "MIT", "count": 1}
        for domain in NUM_ROWS
        for half in range(2)
    ]
    manifest = {"name": "mix", "target": {"model": "models/tiny", **target}, "sources": sources, "domains": TARGETS}
    rendered = {"model": "/models/tiny", "tokenizer_sha256": {"tokenizer.json": "aa"}, "chat_template_sha256": "bb"}
    shards.write_card(
        folder / shards.RUN_CARD, {"manifest": manifest, "target": rendered, "plan": {"digest": "cc"}, "engines": []}
    )
    return folder


@pytest.fixture(scope="module")
def completions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("input") / "completions_raw", _rows())


@pytest.fixture(scope="module")
def balanced(completions: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(BuildOptions(input=completions, out=tmp_path_factory.mktemp("out") / "tokenized_v1", balance=True))


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a set, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_set_and_its_heldout_rows_open_with_datasets_as_they_are(balanced: Built) -> None:
    import datasets

    train = datasets.load_from_disk(str(balanced.folder))
    heldout = datasets.load_from_disk(str(balanced.folder / arrow_sets.HELDOUT))
    assert train.column_names == ["input_ids", "loss_mask", "seq_len", "id", "source", "domain"]
    assert len(train) == balanced.card["rows"] > 0
    assert len(heldout) == balanced.card["heldout"]["rows"] > 0
    assert len(arrow_sets.list_arrow_shards(balanced.folder)) == 45


def test_every_row_is_what_the_engine_saw_with_the_mask_on_what_it_sampled(balanced: Built) -> None:
    by_id = {row["id"]: row for row in _rows()}
    for part in (balanced.folder, balanced.folder / arrow_sets.HELDOUT):
        for row in arrow_sets.read_rows(part):
            origin = by_id[row.id]
            assert row.input_ids == origin["prompt_token_ids"] + origin["completion_token_ids"]
            assert row.loss_mask == [0] * len(origin["prompt_token_ids"]) + [1] * len(origin["completion_token_ids"])
            assert (row.source, row.domain) == (origin["source"], origin["domain"])


def test_the_funnel_adds_up_to_the_last_row(balanced: Built) -> None:
    funnel = balanced.card["funnel"]
    assert funnel["rows_in"] == sum(NUM_ROWS.values())
    for step in funnel["steps"]:
        assert step["rows_in"] - sum(step["dropped"].values()) == step["kept"], step["step"]
    assert funnel["rows_out"] == balanced.card["rows"]
    dropped = pl.read_parquet(balanced.folder / "dropped.parquet")
    assert len(dropped) + balanced.card["heldout"]["rows"] + balanced.card["rows"] == sum(NUM_ROWS.values())


def test_a_balanced_set_has_the_target_shares_within_one_row(balanced: Built) -> None:
    longest = max(row.input_ids.__len__() for row in arrow_sets.read_rows(balanced.folder))
    for domain, counts in balanced.card["by_domain"].items():
        wanted = TARGETS[domain] / 100 * balanced.card["tokens"]
        assert abs(counts["tokens"] - wanted) <= longest, domain


def test_heldout_rows_are_of_every_domain_and_none_is_trained_on(balanced: Built) -> None:
    train = {row.id for row in arrow_sets.read_rows(balanced.folder)}
    heldout = [(row.id, row.domain) for row in arrow_sets.read_rows(balanced.folder / arrow_sets.HELDOUT)]
    assert not train & {id_ for id_, _ in heldout}
    domains = [domain for _, domain in heldout]
    assert {domain: domains.count(domain) for domain in NUM_ROWS} == {"code": 6, "math": 4, "chat": 4, "writing": 4}


def test_set_json_says_where_the_set_came_from_and_holds_a_digest_of_every_shard(balanced: Built) -> None:
    card = arrow_sets.read_set_card(balanced.folder)
    assert card == balanced.card
    assert card["target"]["model"] == "/models/tiny"
    assert card["tokenizer"] == {"tokenizer_sha256": {"tokenizer.json": "aa"}, "chat_template_sha256": "bb"}
    assert card["input"]["run"]["plan"] == {"digest": "cc"}
    assert card["target_shares"] == TARGETS
    digests = _digests(balanced.folder)
    for part, folder in ((card, ""), (card["heldout"], "heldout/")):
        for shard in part["shards"]:
            assert digests[folder + shard["file"]] == shard["sha256"]


def test_the_dropped_rows_say_where_they_were_and_why(balanced: Built, completions: Path) -> None:
    dropped = pl.read_parquet(balanced.folder / "dropped.parquet")
    assert set(dropped["reason"]) == {"over_target_share"}
    for id_, shard, line in dropped.select("id", "shard", "line").iter_rows():
        assert orjson.loads((completions / shard).read_bytes().split(b"\n")[line - 1])["id"] == id_


def test_without_balance_the_natural_mix_is_kept(completions: Path, tmp_path: Path) -> None:
    built = build(BuildOptions(input=completions, out=tmp_path / "set"))
    rows = {domain: counts["rows"] for domain, counts in built.card["by_domain"].items()}
    assert rows == {"code": 302, "math": 36, "chat": 26, "writing": 18}


@pytest.mark.bytes
def test_neither_workers_nor_the_cut_into_shards_change_a_byte(balanced: Built, tmp_path: Path) -> None:
    recut = _write(tmp_path / "recut", _rows(), shard_rows=37)
    again = build(BuildOptions(input=recut, out=tmp_path / "tokenized_v1", balance=True, workers=2))
    one, other = _digests(balanced.folder), _digests(again.folder)
    # These two name shards of the input, so they tell one cut from another.
    assert {name for name in one if one[name] != other.get(name)} <= {"set.json", "dropped.parquet"}
    assert balanced.card | {"input": None} == again.card | {"input": None}


@pytest.mark.bytes
@pytest.mark.slow
def test_ray_gives_the_same_bytes_as_processes(balanced: Built, completions: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        out = tmp_path / "tokenized_v1"
        options = BuildOptions(
            input=completions, out=out, balance=True, pool="ray", workers=2, cache=tmp_path / "facts"
        )
        build(options)
    finally:
        ray.shutdown()
    assert _digests(out) == _digests(balanced.folder)


@pytest.mark.bytes
def test_shards_that_are_links_to_files_of_other_names_build_the_same_set(
    balanced: Built, completions: Path, tmp_path: Path
) -> None:
    linked = tmp_path / "completions_raw"
    linked.mkdir()
    for number, path in enumerate(sorted(completions.glob("*.jsonl"))):
        stored = tmp_path / "store" / f"{number}" / "data.jsonl"
        stored.parent.mkdir(parents=True)
        stored.write_bytes(path.read_bytes())
        (linked / path.name).symlink_to(stored)
    (linked / shards.RUN_CARD).write_bytes((completions / shards.RUN_CARD).read_bytes())
    built = build(BuildOptions(input=linked, out=tmp_path / "set", balance=True, workers=2))
    arrows = {name: digest for name, digest in _digests(built.folder).items() if name.endswith(".arrow")}
    assert arrows == {name: digest for name, digest in _digests(balanced.folder).items() if name.endswith(".arrow")}


def test_an_equal_build_gives_equal_bytes_in_every_file(balanced: Built, completions: Path, tmp_path: Path) -> None:
    again = build(BuildOptions(input=completions, out=tmp_path / "tokenized_v1", balance=True))
    assert _digests(balanced.folder) == _digests(again.folder)


def test_fewer_rows_than_shards_give_a_set_that_loads(tmp_path: Path) -> None:
    import datasets

    built = build(BuildOptions(input=_write(tmp_path / "few", _rows()[:7]), out=tmp_path / "set"))
    assert len(arrow_sets.list_arrow_shards(built.folder)) == 45
    assert len(datasets.load_from_disk(str(built.folder))) == built.card["rows"]
    assert len(list(arrow_sets.read_rows(built.folder))) == built.card["rows"]


def test_rows_that_the_filters_drop_and_lines_that_are_no_rows_are_counted_and_kept_beside_the_set(
    tmp_path: Path,
) -> None:
    rows = _rows()[:60]
    rows[3]["completion"] = ""
    rows[5]["finish_reason"] = "repetition"
    folder = _write(tmp_path / "completions_raw", rows)
    with (folder / shards.shard_name(0)).open("ab") as shard:
        shard.write(b'{"messages": [\n\n')
    built = build(BuildOptions(input=folder, out=tmp_path / "set"))
    assert built.card["input"]["lines"] == {"lines": 62, "accepted": 60, "repaired": 0, "rejected": 1, "blank": 1}
    assert built.card["funnel"]["steps"][0]["dropped"] == {"empty_completion": 1, "finish_reason_repetition": 1}
    dropped = pl.read_parquet(built.folder / "dropped.parquet")
    assert set(dropped["id"]) == {rows[3]["id"], rows[5]["id"]}
    assert len((built.folder / "rejected.jsonl").read_bytes().splitlines()) == 1


def test_near_duplicates_never_stand_on_both_sides_of_the_split(tmp_path: Path) -> None:
    rows = _rows()
    for copy, row in enumerate([dict(row) for row in rows[:100]]):
        rows.append(row | {"id": f"{copy:032x}", "completion": row["completion"] + f" {WORDS[copy % 48]}"})
    built = build(BuildOptions(input=_write(tmp_path / "completions_raw", rows), out=tmp_path / "set"))
    prompt_of = {row["id"]: row["messages"][0]["content"] for row in rows}
    train = {prompt_of[row.id] for row in arrow_sets.read_rows(built.folder)}
    heldout = {prompt_of[row.id] for row in arrow_sets.read_rows(built.folder / arrow_sets.HELDOUT)}
    assert heldout and not train & heldout


CHATML = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def _conversations(count: int, dice: random.Random) -> list[dict[str, Any]]:
    """Rows without ids, three turns each; the second half of them has every turn as a row of its own."""
    rows = []
    for number in range(count):
        texts = [" ".join(dice.choices(WORDS, k=25)) for _ in range(6)]
        turns = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]
        for turn in (1, 3, 5) if number >= count // 2 else (5,):
            rows.append(
                {"id": f"{number}-{turn}", "domain": "chat", "messages": turns[:turn], "completion": texts[turn]}
            )
    return rows


def test_every_turn_is_learned_once_and_a_conversation_is_on_one_side_of_the_split(
    tmp_path: Path, make_tokenizer: Callable[[str], Any]
) -> None:
    make_tokenizer(CHATML).save_pretrained(tmp_path / "target")
    rows = _conversations(40, random.Random(3))
    folder = tmp_path / "foreign"
    folder.mkdir()
    shards.publish(folder / "chats.jsonl", [shards.encode_row(row) for row in rows])
    built = build(
        BuildOptions(input=folder, out=tmp_path / "set", tokenizer=str(tmp_path / "target"), heldout_frac=0.2)
    )
    train = [row.id for row in arrow_sets.read_rows(built.folder)]
    heldout = [row.id for row in arrow_sets.read_rows(built.folder / arrow_sets.HELDOUT)]
    assert len(train) + len(heldout) == 40 * 3
    assert heldout and not {id_.split("-")[0] for id_ in train} & {id_.split("-")[0] for id_ in heldout}
    assert "60 earlier turns are rows of their own as well, and stand once" in built.card["notes"]
    assert built.card["funnel"]["rows_out"] == built.card["rows"] == len(train)


def test_an_upsampled_row_stands_in_the_set_as_often_as_it_repeats(completions: Path, tmp_path: Path) -> None:
    built = build(
        BuildOptions(
            input=completions,
            out=tmp_path / "set",
            balance=True,
            set=("balance.deficit=repeat", "balance.max_repeats=3"),
        )
    )
    ids = [row.id for row in arrow_sets.read_rows(built.folder)]
    counts = np.unique(np.array(ids), return_counts=True)[1]
    assert counts.max() == 3
    assert len(ids) == built.card["rows"]


DRIVER = """
import os, signal, sys
from pathlib import Path
from curation.build import build
from curation.options import BuildOptions

def progress(step, done, total):
    if step == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

build(BuildOptions(input=Path(sys.argv[1]), out=Path(sys.argv[2]), balance=True, workers=1), progress)
"""


@pytest.mark.chaos
@pytest.mark.slow
def test_a_killed_build_shows_nothing_keeps_finished_steps_and_ends_in_the_same_bytes(
    completions: Path, balanced: Built, tmp_path: Path
) -> None:
    out = tmp_path / "tokenized_v1"
    finished: dict[str, tuple[int, int]] = {}
    for step in ("deduplicate", "hold out", "write train"):
        killed = subprocess.run([sys.executable, "-c", DRIVER, str(completions), str(out), step])
        assert killed.returncode == -signal.SIGKILL
        assert not out.exists()
        files = [path for path in (tmp_path / ".tokenized_v1.building").rglob("*.*") if path.is_file()]
        now = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}
        assert finished.items() <= now.items()  # the same files, written once
        finished = {
            name: at
            for name, at in now.items()
            if name.endswith((".arrow", ".index", ".tokens")) and "data-" not in name
        }
    assert {name.split(".")[0] for name in finished} == {
        "filter", "deduplicate", "decontaminate", "tokenise", "hold_out", "balance", "000000"
    }  # fmt: skip
    built = build(BuildOptions(input=completions, out=out, balance=True))
    assert {"filter", "tokens", "balance"} <= set(built.resumed)
    assert _digests(out) == _digests(balanced.folder)
    assert os.listdir(tmp_path) == ["tokenized_v1"]


@pytest.mark.chaos
@pytest.mark.slow
def test_a_build_after_a_killed_one_redoes_what_its_settings_change_and_nothing_else(
    completions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tokenized_v1"
    subprocess.run([sys.executable, "-c", DRIVER, str(completions), str(out), "write train"])
    built = build(BuildOptions(input=completions, out=out, balance=True, set=("heldout.min_rows=2",)))
    assert built.resumed == ("filter", "deduplicate", "decontaminate", "tokens", "tokenise")
    fresh = build(
        BuildOptions(input=completions, out=tmp_path / "fresh" / out.name, balance=True, set=("heldout.min_rows=2",))
    )
    assert fresh.resumed == ()
    assert _digests(out) == _digests(fresh.folder)


LIMITED = """
import resource, sys
from pathlib import Path
from curation.build import build
from curation.options import BuildOptions

resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
try:
    build(BuildOptions(input=Path(sys.argv[1]), out=Path(sys.argv[2]), cache=Path(sys.argv[3])))
except ValueError as error:
    sys.exit(str(error))
"""


@pytest.mark.faults
def test_a_disk_that_takes_no_more_is_one_clear_line_and_nothing_half_written(
    completions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out" / "set"
    limited = subprocess.run(
        [sys.executable, "-c", LIMITED, str(completions), str(out), str(completions / ".facts")],
        capture_output=True,
        text=True,
    )
    assert limited.returncode == 1
    assert limited.stderr.strip().splitlines()[-1].endswith("was not made, run again to go on")
    assert not out.exists()
    assert build(BuildOptions(input=completions, out=out)).resumed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": "nowhere"}, "no folder nowhere; `datagen run"),
        ({"input": "empty"}, "empty holds no completions"),
        ({"recipe": "missing.yaml"}, "no recipe 'missing.yaml' here or in recipes/"),
        ({"recipe": "broken.yaml"}, "broken.yaml: not YAML"),
        ({"recipe": "unknown.yaml"}, "unknown.yaml: dedupe.treshold: Extra inputs are not permitted"),
        ({"set": ("num_shards",)}, "expected name=value"),
        ({"domains": "code"}, "expected name=share pairs"),
        ({"out": "taken"}, "taken exists; choose another --out"),
        ({"set": ("filters.min_prompt_chars=100000",)}, "no row is left to train on; `filter` dropped 5 of 5"),
    ],
)
def test_bad_input_is_one_clear_line(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _write(Path("completions_raw"), _rows()[:5])
    Path("empty").mkdir()
    Path("taken").mkdir()
    Path("broken.yaml").write_text("a: [")
    Path("unknown.yaml").write_text("dedupe: {treshold: 0.5}")
    with pytest.raises(ValueError, match=".*") as caught:
        build(BuildOptions.model_validate(options))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(Path().glob("tokenized_v*"))


def test_balance_without_target_shares_says_where_to_get_them(tmp_path: Path) -> None:
    folder = _write(tmp_path / "completions_raw", _rows()[:40])
    (folder / shards.RUN_CARD).unlink()
    with pytest.raises(ValueError, match="--balance needs target shares: give --domains"):
        build(BuildOptions(input=folder, out=tmp_path / "set", balance=True))


def test_rows_without_ids_and_without_a_target_ask_for_a_tokenizer(tmp_path: Path) -> None:
    rows = [{key: row[key] for key in ("messages", "completion")} for row in _rows()[:40]]
    folder = tmp_path / "foreign"
    folder.mkdir()
    shards.publish(folder / "answers.jsonl", [shards.encode_row(row) for row in rows])
    with pytest.raises(ValueError, match="40 rows have no token ids .* give --tokenizer"):
        build(BuildOptions(input=folder, out=tmp_path / "set"))


def test_foreign_rows_are_rendered_by_the_target_that_the_command_line_names(
    tmp_path: Path, make_tokenizer: Callable[[str], Any]
) -> None:
    tokenizer = make_tokenizer(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path / "target")
    rows = [{key: row[key] for key in ("messages", "completion")} for row in _rows()[:40]]
    folder = tmp_path / "foreign"
    folder.mkdir()
    shards.publish(folder / "answers.jsonl", [shards.encode_row(row) for row in rows])
    built = build(BuildOptions(input=folder, out=tmp_path / "set", tokenizer=str(tmp_path / "target"), heldout_frac=0))
    expected = {
        (
            f"<|im_start|>user\n{row['messages'][0]['content']}<|im_end|>\n<|im_start|>assistant\n",
            row["completion"] + "<|im_end|>",
        )
        for row in rows
    }
    found = set()
    for row in arrow_sets.read_rows(built.folder):
        boundary = row.loss_mask.index(1)
        found.add((tokenizer.decode(row.input_ids[:boundary]), tokenizer.decode(row.input_ids[boundary:])))
    assert found == expected
    assert built.card["target"]["model"] == str(tmp_path / "target")
    assert set(built.card["tokenizer"]) == {"tokenizer_sha256", "chat_template_sha256"}


def test_two_builds_do_not_share_a_workspace(completions: Path, tmp_path: Path) -> None:
    from curation.workspace import open_workspace

    with open_workspace(tmp_path / "set"), pytest.raises(ValueError, match="another build is writing"):
        build(BuildOptions(input=completions, out=tmp_path / "set"))
