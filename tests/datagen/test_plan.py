"""A manifest becomes the same plan everywhere; it is whole or absent on disk, and it only grows."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datagen import plan as plans
from datagen.expansion import Expansion, expand
from datagen.limits import PromptLimit
from datagen.plan import open_or_create, open_plan
from datagen.plan_report import PlanReport
from datagen.rendering import Renderer
from manifests.schema import Manifest, Target
from tests.datagen.tiny_target import make_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("target"), context_length=4096)


def _write(path: Path, prompts: list[str]) -> None:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))


def _source(name: str, **changes: Any) -> dict[str, Any]:
    share = {} if "weight" in changes else {"count": 10**6}
    return {"name": name, "files": f"{name}.jsonl", "domain": "chat", "license": "MIT", **share, **changes}


def _manifest(*sources: dict[str, Any], **changes: Any) -> Manifest:
    return Manifest.model_validate(
        {
            "name": "mix",
            "target": {"model": "none/none"},
            "sources": sources,
            "shard_rows": 10,
            "sampling": {"max_tokens": 64},
            **changes,
        }
    )


def _expand(folder: Path, *sources: dict[str, Any], **changes: Any) -> Expansion:
    return expand(_manifest(*sources, **changes), folder / "mix.yaml")


def _asked(expansion: Expansion) -> list[str]:
    return [prompt.messages[-1]["content"] for prompt in expansion.prompts]


def _ids(plan: plans.Plan) -> list[str]:
    return [prompt.id for prompt in plan.prompts()]


def _bytes(plan: plans.Plan) -> list[bytes]:
    return [(plan.folder / plans.FOLDER / plans.shard_file(index)).read_bytes() for index in range(plan.num_shards)]


# Expanding


def test_the_order_of_rows_and_files_does_not_matter(tmp_path: Path) -> None:
    prompts = [f"prompt {number}" for number in range(100)]
    random.Random(0).shuffle(prompts)
    _write(tmp_path / "a.jsonl", prompts)
    for number in range(4):
        _write(tmp_path / f"part{number}.jsonl", prompts[number::4])
    whole = list(_expand(tmp_path, _source("a", count=30)).prompts)
    parts = list(_expand(tmp_path, _source("a", count=30, files=["part3.jsonl", "part[0-2].jsonl"])).prompts)
    assert whole == parts
    assert len(whole) == 30


def test_every_stretch_of_the_plan_has_the_mix_of_the_whole(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", [f"a{number}" for number in range(600)])
    _write(tmp_path / "b.jsonl", [f"b{number}" for number in range(6000)])
    sources = [prompt.source for prompt in _expand(tmp_path, _source("a"), _source("b", count=600)).prompts]
    assert len(sources) == 1200
    assert all(35 <= sources[start : start + 100].count("a") <= 65 for start in range(0, 1200, 100))


def test_a_manifest_with_all_traps_counts_each_row_once(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"messages": [{"role": "user", "content": "good"}]},
        {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "good"}]},
        {"messages": [{"role": "user", "content": "-"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": "I am {{name}}"}]},
        {"messages": [{"role": "user", "content": "half a pair: \ud83d"}]},
        {"messages": [{"role": "user", "content": "also in b"}]},
        [1],
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"messages": [{"role": "user", "content": "cut'
    (tmp_path / "b.jsonl").write_text(text)
    _write(tmp_path / "a.jsonl", ["also in b"])
    expansion = _expand(tmp_path, _source("a"), _source("b", format="messages"))
    report = expansion.report.sources[1]
    assert (report.found, report.eligible, report.repeats, report.duplicate_of) == (9, 1, 1, {"a": 1})
    assert report.dropped == {
        "not_an_object": 1,
        "not_json": 1,
        "not_utf8": 1,
        "placeholder_prompt": 1,
        "empty_prompt": 1,
        "unfilled_placeholder": 1,
    }
    assert report.first_dropped["placeholder_prompt"] == "b.jsonl:3"
    assert sorted(_asked(expansion)) == ["also in b", "good"]


def test_a_prompt_of_two_sources_is_asked_once_and_belongs_to_the_first(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", [f"{number}" for number in range(50)])
    _write(tmp_path / "b.jsonl", [f"{number}" for number in range(25, 75)])
    once = _expand(tmp_path, _source("a", count=5), _source("b"))
    assert once.report.sources[1].duplicate_of == {"a": 25}
    assert sum(prompt.source == "b" for prompt in once.prompts) == 25
    twice = _expand(tmp_path, _source("a", count=5), _source("b"), deduplicate=False)
    assert sum(prompt.source == "b" for prompt in twice.prompts) == 50
    assert len({prompt.id for prompt in twice.prompts}) == 55


def test_rollouts_are_rows_of_their_own_side_by_side(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", ["one", "two"])
    rows = list(_expand(tmp_path, _source("a", rollouts=3)).prompts)
    assert [row.rollout for row in rows] == [0, 1, 2, 0, 1, 2]
    assert len({row.id for row in rows}) == 6
    assert all(row.conversation == row.id for row in rows)


def test_thinking_on_for_a_fraction_is_decided_per_prompt_and_keeps_when_the_share_grows(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", [f"{number}" for number in range(1000)])
    few = {row.id: row.thinking for row in _expand(tmp_path, _source("a", thinking=0.3, count=400)).prompts}
    many = {row.id: row.thinking for row in _expand(tmp_path, _source("a", thinking=0.3, count=1000)).prompts}
    assert few.items() <= many.items()
    assert 250 < sum(bool(thinking) for thinking in many.values()) < 350
    assert {row.thinking for row in _expand(tmp_path, _source("a", thinking=False)).prompts} == {False}
    assert {row.thinking for row in _expand(tmp_path, _source("a")).prompts} == {None}


def test_a_source_overrides_sampling_and_its_expected_tokens_are_bounded_by_it(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", ["one"])
    expansion = _expand(tmp_path, _source("a", sampling={"max_tokens": 16}), expected_tokens=40)
    (row,) = expansion.prompts
    assert (row.sampling.max_tokens, row.sampling.temperature) == (16, 0.8)
    assert expansion.report.sources[0].expected_tokens == 16


def test_the_turns_of_a_conversation_follow_each_other_in_one_shard(tmp_path: Path) -> None:
    lines = [json.dumps({"turns": [f"{number}.{turn}" for turn in range(1 + number % 4)]}) for number in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    shards = list(_expand(tmp_path, _source("a", turns="all")).shards())
    assert {len(shard) for shard in shards[:10]} == {10}
    assert sum(len(shard) for shard in shards) == 150
    for shard in shards:
        at = {row.id: number for number, row in enumerate(shard)}
        for number, row in enumerate(shard):
            turn = int(row.messages[0]["content"].split(".")[1])
            assert row.parent == (shard[number - 1].id if turn else None)
            assert at[row.conversation] == number - turn


def test_a_conversation_longer_than_a_shard_has_one_to_itself(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"turns": [str(turn) for turn in range(14)]}) + "\n" + json.dumps({"turns": ["x"]})
    )
    assert sorted(len(shard) for shard in _expand(tmp_path, _source("a", turns="all")).shards()) == [1, 14]


def test_too_few_prompts_are_reported_and_not_made_up_elsewhere(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", ["one", "two"])
    _write(tmp_path / "b.jsonl", [str(number) for number in range(50)])
    report = _expand(tmp_path, _source("a", weight=1), _source("b", weight=1), total=20).report
    assert [source.planned for source in report.sources] == [2, 10]
    assert report.warnings == ["source a: 10 prompts wanted, 2 found; its share is not made up elsewhere"]
    assert report.domains()["chat"] == {"planned": 12, "rows": 12, "expected_tokens": 12 * 64}


def test_a_source_with_nothing_to_ask_stops_the_plan_and_says_why(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", ["-", ""])
    with pytest.raises(
        ValueError, match=r"source 'a': no row can be asked of 2 found \(placeholder_prompt 1, empty_prompt 1\)"
    ):
        _expand(tmp_path, _source("a"))
    (tmp_path / "a.jsonl").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match="fetch it with `git lfs pull`"):
        _expand(tmp_path, _source("a"))
    (tmp_path / "a.jsonl").write_text('{"turns": ["1", "2"]}\n')
    with pytest.raises(ValueError, match="use `turns: all`"):
        _expand(tmp_path, _source("a", turns="last"))


def test_a_report_survives_json(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", ["one", "-"])
    report = _expand(tmp_path, _source("a")).report
    assert PlanReport.from_dict(json.loads(json.dumps(report.as_dict()))) == report


def test_prompts_over_the_context_are_dropped_by_tokens_and_counted(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", context_length=200)
    limit = PromptLimit(Renderer(Target(model=str(target))))
    bare = len(limit.renderer.render([{"role": "user", "content": ""}]))
    fits = 200 - 64 - bare
    _write(tmp_path / "a.jsonl", ["x" * fits, "y" * (fits + 1), "z"])
    expansion = expand(_manifest(_source("a")), tmp_path / "mix.yaml", limit=limit)
    assert expansion.report.sources[0].dropped == {"over_context": 1}
    assert sorted(_asked(expansion)) == ["x" * fits, "z"]
    shorter = expand(
        _manifest(_source("a", filters={"max_prompt_tokens": bare + 1})), tmp_path / "mix.yaml", limit=limit
    )
    assert _asked(shorter) == ["z"]
    with pytest.raises(
        ValueError, match="`max_tokens` 200 leaves no room for a prompt in the target's context of 200 tokens"
    ):
        expand(_manifest(_source("a"), sampling={"max_tokens": 200}), tmp_path / "mix.yaml", limit=limit)


def test_progress_is_told_by_source(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", [str(number) for number in range(2500)])
    told: list[tuple[str, int]] = []
    expand(_manifest(_source("a")), tmp_path / "mix.yaml", lambda name, rows: told.append((name, rows)))
    assert told == [("a", 1024), ("a", 2048), ("a", 2500)]


# On disk


def _open(folder: Path, model: Path, /, *sources: dict[str, Any], out: str = "run", **changes: Any) -> plans.Plan:
    manifest = _manifest(*sources, **{"target": {"model": str(model)}, **changes})
    return open_or_create(manifest, folder / "mix.yaml", folder / out)


@pytest.mark.bytes
def test_a_plan_is_read_back_as_it_was_made_and_made_again_to_the_same_bytes(tmp_path: Path, target: Path) -> None:
    _write(tmp_path / "a.jsonl", [f"prompt {number}" for number in range(35)])
    plan, again = (_open(tmp_path, target, _source("a", thinking=0.5), out=out) for out in ("one", "two"))
    assert list(open_plan(tmp_path / "one").prompts()) == list(_expand(tmp_path, _source("a", thinking=0.5)).prompts)
    assert [shard.num_rows for shard in plan.shards] == [10, 10, 10, 5]
    assert (plan.num_rows, plan.num_shards, plan.shard_rows) == (35, 4, 10)
    assert plan.digest == again.digest
    assert _bytes(plan) == _bytes(again)
    assert sorted(path.name for path in (tmp_path / "one/plan").iterdir()) == [
        "plan.json",
        *(f"plan_00000{n}.jsonl.zst" for n in range(4)),
    ]


def test_an_equal_manifest_opens_the_plan_without_its_sources(tmp_path: Path, target: Path) -> None:
    _write(tmp_path / "a.jsonl", ["one", "two"])
    plan = _open(tmp_path, target, _source("a"))
    (tmp_path / "a.jsonl").unlink()
    assert _open(tmp_path, target, _source("a")).digest == plan.digest


def test_no_plan_and_a_damaged_plan_are_said(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ValueError, match="holds no plan; `datagen run"):
        open_plan(tmp_path)
    _write(tmp_path / "a.jsonl", [str(number) for number in range(20)])
    plan = _open(tmp_path, target, _source("a"))
    first, second = (tmp_path / "run/plan" / plans.shard_file(index) for index in (0, 1))
    first.write_bytes(second.read_bytes())
    with pytest.raises(ValueError, match="is not the file that plan.json describes"):
        plan.shard(0)
    second.write_bytes(b"torn")
    with pytest.raises(ValueError, match="is missing or damaged"):
        plan.shard(1)


def test_a_plan_that_was_interrupted_before_its_card_is_made_anew(tmp_path: Path, target: Path) -> None:
    _write(tmp_path / "a.jsonl", [str(number) for number in range(20)])
    whole = _open(tmp_path, target, _source("a"), out="whole")
    (tmp_path / "run/plan").mkdir(parents=True)
    (tmp_path / "run/plan" / plans.shard_file(0)).write_bytes(b"of an interrupted attempt")
    assert _bytes(_open(tmp_path, target, _source("a"))) == _bytes(whole)


# Growing


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_growth_keeps_every_row_in_its_place_and_every_file_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, target: Path, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("growth")
    for name, start in (("a", 0), ("b", 30), ("c", 60)):
        _write(folder / f"{name}.jsonl", [f"prompt {number}" for number in range(start, start + 60)])
    weights = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=2))
    total = data.draw(st.integers(1, 60))
    sources = [_source(name, weight=weight) for name, weight in zip("ab", weights, strict=True)]
    plan = _open(folder, target, *sources, total=total)
    for _ in range(3):
        match data.draw(st.sampled_from(["total", "weight", "source"])):
            case "total":
                total += data.draw(st.integers(1, 20))
            case "weight":
                data.draw(st.sampled_from(sources))["weight"] += data.draw(st.integers(1, 5))
            case "source" if len(sources) == 2:
                sources.insert(data.draw(st.integers(0, 2)), _source("c", weight=data.draw(st.integers(1, 9))))
        grown = _open(folder, target, *sources, total=total)
        assert _ids(grown)[: plan.num_rows] == _ids(plan)
        assert _bytes(grown)[: plan.num_shards] == _bytes(plan)
        assert len(set(_ids(grown))) == grown.num_rows
        asked = Counter(prompt.messages[0]["content"] for prompt in grown.prompts())
        assert max(asked.values()) == 1
        assert (
            sum(source.planned for source in grown.report.sources)
            == sum(source.rows for source in grown.report.sources)
            == grown.num_rows
        )
        plan = grown


def test_a_source_whose_prompts_others_hold_is_a_shortage_and_not_a_mistake(tmp_path: Path, target: Path) -> None:
    for name in "ab":
        _write(tmp_path / f"{name}.jsonl", ["one", "two"])
    plan = _open(tmp_path, target, _source("a", weight=1), _source("b", weight=1), total=2)
    assert [prompt.source for prompt in plan.prompts()] == ["a"]
    assert any("source b: 1 prompts wanted, 0 found" in warning for warning in plan.report.warnings)


def test_what_grew_is_what_would_have_been_drawn_at_once(tmp_path: Path, target: Path) -> None:
    _write(tmp_path / "a.jsonl", [str(number) for number in range(100)])
    _write(tmp_path / "b.jsonl", [str(number) for number in range(50, 150)])
    _open(tmp_path, target, _source("a", count=13))
    grown = _open(tmp_path, target, _source("a", count=40), _source("b", count=25))
    at_once = _open(tmp_path, target, _source("a", count=40), _source("b", count=25), out="at_once")
    assert sorted(_ids(grown)) == sorted(_ids(at_once))
    assert [shard.num_rows for shard in grown.shards] == [10, 3, 10, 10, 10, 10, 10, 2]


def test_a_new_source_in_front_takes_nothing_from_what_is_planned(tmp_path: Path, target: Path) -> None:
    _write(tmp_path / "a.jsonl", [str(number) for number in range(30)])
    _write(tmp_path / "b.jsonl", [str(number) for number in range(40)])
    plan = _open(tmp_path, target, _source("a"))
    grown = _open(tmp_path, target, _source("b"), _source("a"))
    assert _ids(grown)[:30] == _ids(plan)
    assert [(source.name, source.planned, source.duplicate_of) for source in grown.report.sources] == [
        ("b", 10, {"a": 30}),
        ("a", 30, {}),
    ]


def test_conversations_and_rollouts_grow_too(tmp_path: Path, target: Path) -> None:
    lines = [json.dumps({"turns": [f"{number}.{turn}" for turn in range(1 + number % 3)]}) for number in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    small = _open(tmp_path, target, _source("a", turns="all", rollouts=2, count=15))
    grown = _open(tmp_path, target, _source("a", turns="all", rollouts=2, count=40))
    assert _bytes(grown)[: small.num_shards] == _bytes(small)
    assert grown.num_rows == grown.report.sources[0].rows == 2 * sum(1 + number % 3 for number in range(40))
    assert len(set(_ids(grown))) == grown.num_rows


def test_prompts_beyond_a_share_that_became_smaller_stay_and_are_reported(tmp_path: Path, target: Path) -> None:
    _write(tmp_path / "a.jsonl", [f"a{number}" for number in range(100)])
    _write(tmp_path / "b.jsonl", [f"b{number}" for number in range(100)])
    _open(tmp_path, target, _source("a", weight=1), _source("b", weight=1), total=20)
    grown = _open(tmp_path, target, _source("a", weight=1), _source("b", weight=3), total=20)
    assert [source.planned for source in grown.report.sources] == [10, 15]
    assert grown.report.warnings == ["source a: 5 prompts beyond its share stay, since they are planned already"]


def test_rows_that_vanished_from_a_source_stay_planned(tmp_path: Path, target: Path) -> None:
    _write(tmp_path / "a.jsonl", [str(number) for number in range(20)])
    plan = _open(tmp_path, target, _source("a", count=20))
    _write(tmp_path / "a.jsonl", [str(number) for number in range(10, 40)])
    assert _ids(_open(tmp_path, target, _source("a", count=25)))[:20] == _ids(plan)


@pytest.mark.parametrize(
    ("source", "changes", "says"),
    [
        (
            {"count": 19},
            {},
            "`count` of source 'a' is 19, below the 20 prompts already planned; 1 of its 20 rows would not be asked",
        ),
        (
            {"cap": 5},
            {},
            "`cap` of source 'a' is 5, below the 20 prompts already planned; 15 of its 20 rows would not be asked",
        ),
        ({}, {"seed": 1}, "`seed` was 0, is 1; 0 of its 20 rows would not be asked"),
        ({}, {"shard_rows": 20}, "`shard_rows` was 10, is 20; 0 of its 20 rows would not be asked"),
        (
            {},
            {"sampling": {"max_tokens": 64, "temperature": 1.0}},
            "`sampling.temperature` was 0.8, is 1.0; 0 of its 20",
        ),
        ({"turns": "all"}, {}, "`turns` of source 'a' was first, is all; 20 of its 20 rows would not be asked"),
        (
            {"filters": {"min_prompt_chars": 2}},
            {},
            "`filters.min_prompt_chars` of source 'a' was 1, is 2; 10 of its 20",
        ),
        ({"name": "b"}, {}, "source 'a' is gone; 20 of its 20 rows would not be asked"),
        ({"files": "gone.jsonl"}, {}, "`files` of source 'a' was a.jsonl, is gone.jsonl. A plan only grows"),
    ],
)
def test_any_other_difference_refuses_and_is_shown(
    tmp_path: Path, target: Path, source: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    _write(tmp_path / "a.jsonl", [str(number) for number in range(20)])
    plan = _open(tmp_path, target, _source("a", count=20))
    with pytest.raises(ValueError) as caught:
        _open(tmp_path, target, {**_source("a", count=20), "files": "a.jsonl", **source}, **changes)
    assert says in str(caught.value)
    assert open_plan(tmp_path / "run").digest == plan.digest


def test_a_smaller_total_and_another_target_refuse(tmp_path: Path, target: Path) -> None:
    _write(tmp_path / "a.jsonl", [str(number) for number in range(20)])
    _open(tmp_path, target, _source("a", weight=1), total=20)
    with pytest.raises(ValueError, match="the total falls from 20 to 19 prompts; 1 of its 20 rows"):
        _open(tmp_path, target, _source("a", weight=1), total=19)
    with pytest.raises(ValueError, match=r"`target.model` was .*, is other/model"):
        _open(tmp_path, target, _source("a", weight=1), total=20, target={"model": "other/model"})


@pytest.mark.parametrize("changes", [{"domains": {"chat": 1}}, {"description": "better"}, {"licenses": ["MIT"]}])
def test_what_no_row_depends_on_may_change(tmp_path: Path, target: Path, changes: dict[str, Any]) -> None:
    _write(tmp_path / "a.jsonl", [str(number) for number in range(20)])
    plan = _open(tmp_path, target, _source("a"))
    again = _open(tmp_path, target, _source("a", notes="known"), **changes)
    assert again.digest == plan.digest
    assert again.manifest.sources[0].notes == "known"


def test_a_disk_without_room_is_noticed_before_anything_is_read(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ValueError, match=r"GB free, and 1000000000 prompts .* need about .* GB; lower `total`"):
        _open(tmp_path, target, _source("missing", count=10**9))
