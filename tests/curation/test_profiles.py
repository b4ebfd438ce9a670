"""The profile: shares, skew, faults and duplicates of small corpora with known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from curation.corpus import open_corpus
from curation.duplication import near_duplicates
from curation.mixes import PUBLISHED, Mix
from curation.profiles import Profile, Share, profile, skew_against, verdict_on
from curation.shingles import minhash, shingle_hashes


def made(number: int, domain: str, num_tokens: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"{number}",
        "source": f"{domain}_source",
        "domain": domain,
        "messages": [
            {
                "role": "user",
                "content": f"Question {number} about {domain}: " + " ".join(f"w{number}x{i}" for i in range(12)),
            }
        ],
        "completion": f"This is the answer number {number}, and it is as good as any other.",
        "prompt_token_ids": [1] * 10,
        "completion_token_ids": [2] * (num_tokens - 10),
        "finish_reason": "stop",
        **changes,
    }


def profiled(folder: Path, rows: list[dict[str, Any]], targets: dict[str, float] | None = None) -> Profile:
    (folder / "completions_000000.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return profile(open_corpus(folder), targets or {})


def test_tokens_and_rows_are_counted_by_domain(tmp_path: Path) -> None:
    found = profiled(tmp_path, [made(0, "code", 100), made(1, "code", 60), made(2, "math", 40)])
    assert (found.num_rows, found.tokens, found.prompt_tokens, found.completion_tokens) == (3, 200, 30, 170)
    assert found.shares["domain"] == [
        Share("code", 2, 160, 140, 2 / 3, 0.8),
        Share("math", 1, 40, 30, 1 / 3, 0.2),
    ]
    assert found.shares["finish_reason"] == [Share("stop", 3, 200, 170, 1.0, 1.0)]


def test_a_planted_share_of_seventy_seven_percent_is_recovered(tmp_path: Path) -> None:
    rows = [made(number, "code" if number % 100 < 77 else "chat", 50) for number in range(1000)]
    found = profiled(tmp_path, rows, {"code": 0.2, "chat": 0.8})
    assert found.shares["domain"][0].row_frac == pytest.approx(0.77)
    assert found.verdict[0] == "code is 77.0% of samples and 77.0% of tokens; target 20%"
    assert found.skews[0].token_distance == pytest.approx(0.57)


def test_an_absent_domain_is_named(tmp_path: Path) -> None:
    found = profiled(tmp_path, [made(0, "code", 50)], {"code": 1, "science": 1})
    assert "science is 0.0% of samples and 0.0% of tokens; target 50%" in found.verdict
    assert "nothing at all of science" in found.verdict


def test_without_a_target_the_balanced_pilot_is_the_measure(tmp_path: Path) -> None:
    found = profiled(tmp_path, [made(0, "code", 50)])
    assert not found.skews[0].is_target
    assert found.verdict[0] == "code is 100.0% of samples and 100.0% of tokens; balanced pilot has 20%"


def test_a_mix_on_target_says_so() -> None:
    skew = skew_against(
        [Share("code", 1, 1, 1, 0.5, 0.5), Share("stem", 1, 1, 1, 0.5, 0.5)],
        Mix("it", "", {"code": 5, "science": 5}),
        True,
    )
    assert skew.token_distance == 0
    assert verdict_on(skew) == ["the mix is within 5 points of it in every domain"]


def test_published_shares_sum_to_one() -> None:
    assert all(sum(mix.shares().values()) == pytest.approx(1) for mix in PUBLISHED)


def test_lengths_have_quantiles_and_a_histogram_that_adds_up(tmp_path: Path) -> None:
    found = profiled(tmp_path, [made(number, "code", 10 + length) for number, length in enumerate((1, 2, 3, 4, 100))])
    lengths = found.completion_lengths
    assert (lengths.mean, lengths.quantiles["0"], lengths.quantiles["0.5"], lengths.quantiles["1"]) == (22, 1, 3, 100)
    assert lengths.bin_edges == [0, 1, 2, 4, 8, 16, 32, 64, 128]
    assert lengths.counts == [0, 1, 2, 1, 0, 0, 0, 1]
    assert lengths.counts_by_domain == {"code": lengths.counts}


def test_faults_are_counted_by_domain(tmp_path: Path) -> None:
    rows = [
        made(0, "code", 20, finish_reason="length"),
        made(1, "code", 20, completion="again and again " * 40),
        made(2, "chat", 20, completion=""),
        made(3, "chat", 20),
    ]
    found = profiled(tmp_path, rows)
    assert {name: count for name, count in found.faults.items() if count} == {"truncated": 1, "loop": 1, "empty": 1}
    assert found.faults_by_domain["chat"]["empty"] == 1
    assert "25.0% of completions are empty" in found.verdict


def test_duplicates_are_counted_exact_and_near(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(200))
    texts = [
        words,
        words,
        words.upper() + "!",
        words.replace("word100", "other"),
        "something else entirely, in six words",
    ]
    rows = [
        made(n, "chat", 20, messages=[{"role": "user", "content": text}], completion=f"answer {min(n, 1)}")
        for n, text in enumerate(texts)
    ]
    found = profiled(tmp_path, rows).duplication
    assert (found.exact_prompt_rows, found.exact_rows, found.near_prompt_rows) == (2, 1, 3)
    assert found.by_source == {"chat_source": 3}


def test_near_duplicates_agree_with_comparing_all_pairs() -> None:
    rng = np.random.default_rng(0)
    texts = []
    for group in range(40):
        words = [f"g{group}w{number}" for number in range(60)]
        for edits in (0, 1, 2, 6, 20):
            edited = list(words)
            for place in rng.choice(60, edits, replace=False):
                edited[place] = f"edit{rng.integers(1 << 30)}"
            texts.append(" ".join(edited))
    signatures = minhash(*shingle_hashes(texts))
    agreement = (signatures[:, None] == signatures[None]).mean(axis=2)
    expected = [bool((agreement[row, :row] >= 0.8).any()) for row in range(len(texts))]
    found = near_duplicates(signatures, 0.8)
    missed = [row for row in range(len(texts)) if expected[row] and not found[row]]
    assert not any(found[row] and not expected[row] for row in range(len(texts)))
    assert len(missed) <= 1  # bands find 0.9999 of pairs at the threshold; a row may have a later partner only


def test_disagreement_between_manifest_and_content_is_reported(tmp_path: Path) -> None:
    code = "```python\nprint(1)\n```"
    rows = [
        made(0, "code", 20, completion=code),
        made(1, "math", 20, completion=code),
        made(2, "multilingual", 20, completion=code),
    ]
    found = profiled(tmp_path, rows).agreement
    assert (found.compared, found.agreed) == (2, 1)
    assert found.confusion == {"code": {"code": 1}, "math": {"code": 1}}


def test_a_folder_without_a_completion_says_what_it_found(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no completion in 2 lines \(no_completion: 2\)"):
        profiled(tmp_path, [{"text": "one"}, {"text": "two"}])


def test_the_profile_is_json(tmp_path: Path) -> None:
    document = orjson.loads(orjson.dumps(profiled(tmp_path, [made(0, "code", 50)]).as_json()))
    assert document["version"] == 1
    assert document["lines"] == {"lines": 1, "accepted": 1, "repaired": 0, "rejected": 0, "blank": 0}
