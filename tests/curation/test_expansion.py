"""`curate plan`: the arithmetic of growth, the order it proposes, and the files it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from curation import expansion, next_manifest
from curation.expansion import DomainStock, plan
from curation.expansion_report import BEGIN, END, write_section
from curation.options import PlanOptions
from curation.planning import make_plan, measured_speed
from datagen import shards
from manifests import schema
from manifests.schema import Manifest

STOCKS = {
    "code": DomainStock(770, 77_000, 61_600),
    "math": DomainStock(150, 15_000, 12_000),
    "chat": DomainStock(80, 8_000, 6_400),
}
TARGETS = {"code": 20, "math": 40, "chat": 40}


def test_the_plan_keeps_every_token_and_names_what_each_domain_lacks() -> None:
    made = plan(STOCKS, TARGETS, tokens_per_second=1000)
    assert made.total_tokens == 385_000  # 77,000 tokens of code at a share of 20%
    assert made.enough == ["code"]
    lacking = {growth.domain: growth.lacking_tokens for growth in made.growths}
    assert lacking == {"math": 154_000 - 15_000, "chat": 154_000 - 8_000}
    math = next(growth for growth in made.growths if growth.domain == "math")
    assert math.prompts == 1390  # 100 tokens a row
    assert math.generated_tokens == 1390 * 80
    assert math.hours == pytest.approx(1390 * 80 / 1000 / 3600)
    assert (made.binding, made.reachable_tokens) == ("chat", 20_000)


def test_a_smaller_total_lacks_less_and_may_lack_nothing() -> None:
    assert plan(STOCKS, TARGETS, total_tokens=20_000).growths == []
    half = plan(STOCKS, TARGETS, total_tokens=50_000)
    assert {growth.domain: growth.lacking_tokens for growth in half.growths} == {"math": 5_000, "chat": 12_000}


def test_without_an_evaluation_the_most_wanted_domain_comes_first() -> None:
    made = plan(STOCKS, {"code": 20, "math": 20, "chat": 60})
    assert [growth.domain for growth in made.growths] == ["chat", "math"]
    assert made.tau_now is None and made.growths[0].gain is None


def test_a_domain_that_drafts_badly_comes_before_one_that_drafts_well() -> None:
    stocks = {
        "code": DomainStock(100, 10_000, 8_000),
        "math": DomainStock(10, 1_000, 800),
        "chat": DomainStock(10, 1_000, 800),
    }
    targets = {"code": 1, "math": 1, "chat": 1}
    bad_chat = plan(stocks, targets, taus={"code": 4.0, "math": 4.0, "chat": 1.5})
    assert [growth.domain for growth in bad_chat.growths] == ["chat", "math"]
    bad_math = plan(stocks, targets, taus={"code": 4.0, "math": 1.5, "chat": 4.0})
    assert [growth.domain for growth in bad_math.growths] == ["math", "chat"]
    assert bad_math.tau_now == pytest.approx(3 / (1 / 4 + 1 / 4 + 1 / 1.5))
    assert bad_math.tau_then is not None and bad_math.tau_then > bad_math.tau_now


def test_a_domain_without_rows_is_priced_by_what_the_manifest_expects() -> None:
    made = plan({"code": STOCKS["code"]}, {"code": 50, "math": 50}, expected_tokens=480)
    (math,) = made.growths
    assert math.lacking_tokens == 77_000
    assert math.prompts == 154  # 480 tokens of answer after a prompt of 20
    assert math.generated_tokens == 154 * 480


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**6), min_size=1),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 100), min_size=1),
)
def test_what_is_there_and_what_is_planned_make_the_shares(tokens: dict[str, int], targets: dict[str, float]) -> None:
    stocks = {domain: DomainStock(max(1, count // 100), count, count // 2) for domain, count in tokens.items()}
    if not any(stocks[domain].tokens for domain in targets if domain in stocks):
        with pytest.raises(ValueError, match="no rows in any domain"):
            plan(stocks, targets)
        return
    made = plan(stocks, targets)
    after = {domain: stocks[domain].tokens if domain in stocks else 0 for domain in targets}
    for growth in made.growths:
        after[growth.domain] += growth.lacking_tokens
    for domain, share in targets.items():
        wanted = share / sum(targets.values()) * made.total_tokens
        assert wanted - 1.001 <= after[domain] <= wanted + 1.001


def _manifest(**fields: Any) -> Manifest:
    sources = [
        {"name": "own_code", "files": "code.jsonl", "domain": "code", "license": "MIT", "count": 770},
        {"name": "own_math", "files": "math.jsonl", "domain": "math", "license": "MIT", "count": 150},
        {"name": "hub_chat", "hub": {"repo": "a/chat"}, "domain": "chat", "license": "MIT", "count": 80, "cap": 500},
    ]
    document = {"name": "mix", "target": {"model": "a/b"}, "sources": sources, "domains": TARGETS}
    return Manifest.model_validate(document | fields)


def _catalogue() -> list[Manifest]:
    """Two mixes; the second has another part of the first one's data set."""

    def mix(name: str, *sources: tuple[str, str, str, int | None, str]) -> Manifest:
        rows = [
            {
                "name": n,
                "hub": {"repo": repo},
                "domain": d,
                "license": lic,
                "weight": 1,
                "cap": cap,
                "filters": {"where": {"part": [n]}},
            }
            for n, d, lic, cap, repo in sources
        ]
        return Manifest.model_validate({"name": name, "target": {"model": "a/b"}, "total": 10, "sources": rows})

    return [
        mix("first", ("big_math", "math", "MIT", 1000, "x/m"), ("nc_chat", "chat", "CC-BY-NC-4.0", None, "x/c")),
        mix("second", ("more_math", "math", "MIT", None, "x/m"), ("other_code", "code", "MIT", None, "x/k")),
    ]


def test_own_sources_come_first_then_shipped_ones_each_up_to_its_cap() -> None:
    made = plan(STOCKS, TARGETS)
    grown = next_manifest.grow(_manifest(licenses=["MIT"]), made.growths, _catalogue())
    steps = {step.source.name: (step.have, step.add) for step in grown.sources}
    assert steps == {"hub_chat": (80, 420), "big_math": (0, 1000), "more_math": (0, 390)}
    assert grown.unfilled == {"chat": 1460 - 420}
    assert grown.barred == {"chat": ["CC-BY-NC-4.0"]}
    counts = {source.name: source.count for source in grown.manifest.sources}
    assert counts == {"own_code": 770, "own_math": 150, "hub_chat": 500, "big_math": 1000, "more_math": 390}


def test_weights_become_counts_that_ask_for_no_less_than_before() -> None:
    manifest = Manifest.model_validate(
        {
            "name": "mix", "target": {"model": "a/b"}, "total": 1000, "domains": TARGETS,
            "sources": [
                {"name": name, "hub": {"repo": f"a/{name}"}, "domain": name, "license": "MIT", "weight": weight}
                for name, weight in (("code", 77), ("math", 15), ("chat", 8))
            ],
        }
    )  # fmt: skip
    grown = next_manifest.grow(manifest, plan(STOCKS, TARGETS).growths, [])
    assert grown.manifest.total is None
    assert {source.name: source.count for source in grown.manifest.sources} == {
        "code": 770,
        "math": 150 + 1390,
        "chat": 80 + 1460,
    }
    assert grown.unfilled == {}


def test_the_shipped_mixes_offer_sources_for_what_a_drafter_needs() -> None:
    domains = {source.domain for mix in next_manifest.shipped_mixes() for source in mix.sources if source.hub}
    assert {"code", "math", "science", "chat", "multilingual", "tool_use"} <= domains


def _completions(folder: Path) -> Path:
    """A folder of 77% code with a run card and a status, as datagen leaves it."""
    folder.mkdir()
    rows = [
        {
            "id": f"{domain}{number}", "source": f"own_{domain}", "domain": domain,
            "messages": [{"role": "user", "content": f"question {number} of {domain}"}], "completion": "an answer",
            "prompt_token_ids": [1] * 20, "completion_token_ids": [2] * 80, "finish_reason": "stop",
        }
        for domain, count in (("code", 77), ("math", 15), ("chat", 8)) for number in range(count)
    ]  # fmt: skip
    shards.publish(folder / shards.shard_name(0), [shards.encode_row(row) for row in rows])
    shards.write_card(folder / shards.RUN_CARD, {"manifest": _manifest().model_dump(mode="json"), "target": {}})
    shards.write_card(folder / "status.json", {"completion_tokens_per_s": {"now": 1.0, "life": 200.0}})
    return folder


def test_the_command_writes_the_marked_section_and_a_manifest_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("DATA_EXPANSION.md").write_text(f"# Ours\n\nbefore\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    planned = make_plan(PlanOptions(profile=_completions(tmp_path / "completions_raw"), price_per_hour=2.0))
    document = Path("DATA_EXPANSION.md").read_text()
    assert document.startswith("# Ours\n\nbefore\n\n" + BEGIN) and document.endswith(END + "\n\nafter\n")
    assert "old" not in document
    assert "| math | 1,500 | 40.0% | 9.7% | 13,900 | 139 | 11,120 | 0.02 | 0.03 |" in document
    assert planned.manifest == Path("mix_next.yaml")
    manifest, _ = schema.load("mix_next.yaml")
    assert next(source.count for source in manifest.sources if source.name == "hub_chat") == 80 + 146
    assert yaml.safe_load(Path("mix_next.yaml").read_text())["name"] == "mix"


def test_a_profile_file_and_an_evaluation_give_the_same_plan_with_gains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = _completions(tmp_path / "completions_raw")
    shares = [
        {"name": n, "rows": s.rows, "tokens": s.tokens, "completion_tokens": s.completion_tokens}
        for n, s in STOCKS.items()
    ]
    (folder / "profile.json").write_bytes(orjson.dumps({"shares": {"domain": shares}}))
    Path("evaluation.json").write_bytes(
        orjson.dumps({"by_domain": {"code": {"tau": 4.0}, "math": {"tau": 2.0}, "chat": {"tau": 1.0}}})
    )
    planned = make_plan(PlanOptions(profile=folder / "profile.json", evaluation=Path("evaluation.json")))
    assert [growth.domain for growth in planned.plan.growths] == ["chat", "math"]
    assert "gain in tau of the mix" in planned.text
    assert "One target forward yields 1.54 tokens of the target mix now" in planned.text


def test_a_section_is_added_to_a_document_without_markers_and_replaced_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# Notes\n")
    write_section(path, "one")
    write_section(path, "two")
    assert path.read_text() == f"# Notes\n\n{BEGIN}\ntwo\n{END}\n"
    path.write_text(f"# Notes\n{END}\n")
    with pytest.raises(ValueError, match="without the other"):
        write_section(path, "three")


def test_speed_is_summed_over_ranks(tmp_path: Path) -> None:
    assert measured_speed(tmp_path) is None
    for rank in range(2):
        shards.write_card(tmp_path / f"status_{rank:03d}_of_002.json", {"completion_tokens_per_s": {"life": 50.0}})
    assert measured_speed(tmp_path) == 100.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "nowhere.json"}, "cannot read nowhere.json"),
        ({"profile": "list.json"}, "expected a JSON object, found list"),
        ({"profile": "other.json"}, "not a profile"),
        ({"domains": "code:20"}, "expected name=share pairs"),
        ({"evaluation": "list.json"}, "expected a JSON object"),
        ({"evaluation": "empty.json"}, "no tau per domain"),
        ({"manifest": "gone.yaml"}, "no manifest 'gone.yaml'"),
    ],
)
def test_bad_input_is_one_clear_line(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _completions(tmp_path / "completions_raw")
    for name, value in (("list", []), ("other", {"a": 1}), ("empty", {})):
        Path(f"{name}.json").write_bytes(orjson.dumps(value))
    with pytest.raises(ValueError, match=".*") as caught:
        make_plan(PlanOptions.model_validate(options))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_target_shares_are_needed() -> None:
    with pytest.raises(ValueError, match="a plan needs target shares"):
        plan(STOCKS, {})
    with pytest.raises(ValueError, match="no rows in any domain with a target share"):
        plan(STOCKS, {"writing": 1})
    assert expansion.taus_of({"code": 2.5}) == {"code": 2.5}
