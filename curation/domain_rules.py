"""Strong rules: the domain of a row where its markup or its wording leaves no doubt.

Tool definitions and calls, fenced or plain source code, and questions that name a technology and something to make with it. On
labelled public data 99 of 100 of these verdicts are right (docs/classifier.md); what they do not decide is left to `classify`.
"""

from __future__ import annotations

import re
from typing import Any

Guess = tuple[str, str, float]
"""(domain, what decided: rule, model or none, confidence in [0, 1])."""

PROMPT_CHARS = 900
ANSWER_CHARS = 800
"""How much of a row is read to classify it: the beginning and the end of the prompt, and the beginning of the answer."""

_PROGRAMMING = frozenset(
    "python python3 py pycon java javascript js jsx typescript ts tsx c cpp c++ cs csharp c# go golang rust rs ruby rb php swift kotlin scala r sql mysql "
    "bash sh shell zsh powershell perl lua haskell html css scss yaml yml xml toml dockerfile makefile matlab julia dart vb asm vue svelte graphql "
    "solidity verilog elixir clojure groovy cmake nginx ini diff".split()
)
"""Tags of fenced blocks that hold a program."""

_TOOL_MARKUP = (
    "<tool_call>",
    "<functioncall>",
    "<|python_tag|>",
    "<function=",
    "[TOOL_CALLS]",
    "<function_calls>",
    "<invoke name=",
)
_TOOL_PROMPT = (
    "<tools>",
    "the following functions",
    "the following tools",
    "these functions",
    "these tools",
    "function signatures",
    "vailable functions",
    "vailable tools",
    '"parameters": {',
)
_SURE_TECHNOLOGY = frozenset(
    "javascript typescript c++ php mysql sql postgresql sqlite mongodb redis html css css3 sass nodejs reactjs jquery vuejs nextjs fastapi django numpy scipy sklearn "
    "scikit-learn matplotlib pytorch tensorflow bash powershell golang kotlin prolog fortran cobol haskell regex regexp graphql grpc cors http crontab makefile "
    "cmake gcc npm webpack flexbox gitignore github gitlab dockerfile kubernetes terraform ansible nginx jenkins pytest junit malloc calloc printf stdin stdout "
    "utf-8 localhost nullpointerexception".split()
)
"""Names that mean nothing outside computing: beside them a question or the wish to make something is enough."""
_TECHNOLOGY = _SURE_TECHNOLOGY | frozenset(
    "angular api assembly c# docker flask git html5 java json linux lua matlab pandas perl python react ruby rust scala swift unix vba vue xml yaml".split()
)
_ASKING = frozenset("difference mean means explain why how what when which show".split())
_ARTEFACT = frozenset(
    "function functions program programs script scripts query queries code snippet class classes algorithm method statement statements loop loops stylesheet "
    "page webpage website app application component module command bug error syntax library framework selector test tests array dictionary dataframe list "
    "string variable variables decorator server database table container repository commit branch endpoint file tuple tag form object package macro".split()
)
_MAKING = frozenset(
    "write create generate implement develop construct design build debug fix edit modify refactor optimize optimise compile rewrite".split()
)
_MADE = frozenset("code pseudocode pseudo-code sql algorithm program regex subroutine".split())
_PROGRAM_PHRASES = (
    frozenset(
        (made, joined)
        for made in ("function", "program", "class", "method", "query")
        for joined in ("that", "to", "which", "called", "named", "in", "with")
    )
    | frozenset((made, joined) for made in ("script", "code") for joined in ("that", "to", "which"))
    | {("regular", "expression")}
)
_NEAR_WORDS = 10
_STOPS = str.maketrans({**dict.fromkeys("!?\n", "."), **dict.fromkeys("\"'`(),:;/[]{}<>*=", " ")})
"""One character for one, for which `str.translate` has a fast path."""
_CODE_HINTS = (
    "def ",
    "import ",
    "function",
    "return",
    "#include",
    "class ",
    "SELECT ",
    "select ",
    "INSERT",
    "UPDATE ",
    "</",
    "{",
    ");",
    "=>",
    "print",
    " = ",
    "()",
    "/>",
    "#!/",
)
_CODE_LINE = re.compile(
    r"^\s*(?:(?:async )?def \w+\(.*|class \w+.*[:{]?|import [\w.{*]+.*|from [\w.]+ import .*|#include\s*[<\"].*|return\b.*[^.]|"
    r"(?:if|for|while|elif|else if|switch|with|foreach)\b.*[:{)]|(?:else|try|finally|do|fi|then|done|end)\s*[:{]?|except.*:|"
    r"(?:public|private|protected|static|const|let|var|final|void|int|float|double|string|auto|bool|String|char|long)\b.*[;{=(].*|"
    r"(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|FROM|WHERE|GROUP BY|ORDER BY|LEFT JOIN|INNER JOIN|JOIN|VALUES|HAVING|LIMIT|SET)\b.*|"
    r"[$]?\w[\w.\[\]'\"]*(?:, \w+)*\s?[-+*/|]?=\s?[^=].*|[\w.>:$-]+\(.*\)\s*[;,{]?(?:\s*(?:#|//).*)?|</?[a-zA-Z!][^>]*>.*|[})\]]+[;,)]*|\{|.*[;{]|@\w+.*|"
    r"function\b.*|func \w.*|fn \w.*|console\..*|print[ (].*|echo .*|package \w+.*|using [\w.]+;|<\?php.*|#!/.*|[.#]?[\w-]+\s*\{.*|"
    r"[\w-]+:\s[^.]*;|[\"']\w+[\"']:\s.*,?|\w+ -> .*)\s*$"
)
_COMMENT_LINE = re.compile(r"^\s*(?:#|//|/\*|\*|--|<!--|\"\"\"|[']{3})")
_SIGNATURE = re.compile(r"^[ \t]*(?:async )?def \w+\([^\n]*\)(?: *-> *[^\n]+)?:[ \t]*$", re.MULTILINE)
"""A line that begins a function in Python, whatever prose its docstring holds."""

_FORMULA = re.compile(r"<<[\d.]|\\(?:frac|sqrt|cdot|times|boxed|\(|\[|left|begin)|\$\$")


def by_rule(row: dict[str, Any], prompt: str) -> Guess | None:
    """Return the domain that markup settles, or None."""
    completion = row["completion"]
    if row.get("tool_calls") or row.get("tools") or any(message["role"] == "tool" for message in row["messages"]):
        return "tool_use", "rule", 1.0
    edges = completion if len(completion) < 2 * ANSWER_CHARS else completion[:ANSWER_CHARS] + completion[-ANSWER_CHARS:]
    if any(markup in edges for markup in _TOOL_MARKUP) or any(said in prompt for said in _TOOL_PROMPT):
        return "tool_use", "rule", 1.0
    if fenced_code_chars(completion) * 4 > len(completion):
        return "code", "rule", 1.0
    question = question_of(prompt)
    if (
        is_plain_code(completion)
        or asks_for_code(question)
        or is_plain_code(question, least=3)
        or _has_signature(question)
    ):
        return "code", "rule", 1.0
    return None


def fenced_code_chars(text: str) -> int:
    """Return how many characters are in fenced blocks tagged as a programming language."""
    if "```" not in text:
        return 0
    blocks = text.split("```")[1::2]
    return sum(len(block) for block in blocks if block[:20].partition("\n")[0].strip().lower() in _PROGRAMMING)


def asks_for_code(question: str) -> bool:
    """Whether one sentence of a question names a technology beside an artefact, asks about one that is nothing else, or asks to make
    a program."""
    said = question.replace(".js", "js").lower().translate(_STOPS).replace(".", " . ").split()
    if _TECHNOLOGY.isdisjoint(said) and _MAKING.isdisjoint(said):
        return False
    technology = artefact = making = -1000
    sure = wanted = False
    for place, word in enumerate(said):
        if word == ".":
            technology = artefact = making = -1000
            sure = wanted = False
        elif word in _TECHNOLOGY:
            technology = place
        elif word in _MAKING:
            making = place
        if word in _ARTEFACT:
            artefact = place
        sure = sure or word in _SURE_TECHNOLOGY
        wanted = wanted or word in _MAKING or word in _ASKING
        if sure and wanted:
            return True
        if technology >= 0 and artefact >= 0 and abs(technology - artefact) <= _NEAR_WORDS:
            return True
        if 0 <= making < place and place - making <= _NEAR_WORDS:
            if word in _MADE or (place + 1 < len(said) and (word, said[place + 1]) in _PROGRAM_PHRASES):
                return True
    return False


def is_plain_code(text: str, *, least: int = 1) -> bool:
    """Whether a text without a fence is source code: `least` lines of its beginning, and two in three of them, look like it."""
    head = text[:ANSWER_CHARS].strip()
    if not any(hint in head for hint in _CODE_HINTS) or _FORMULA.search(head):
        return False
    lines = [line for line in head.split("\n") if line.strip()]
    statements = misses = 0
    for line in lines:
        if _CODE_LINE.match(line) and not _is_sentence(line):
            statements += 1
        elif not _COMMENT_LINE.match(line):
            misses += 1
            if misses * 3 > len(lines):
                return False
    return statements >= least and (statements > 1 or _is_statement(head))


def _has_signature(text: str) -> bool:
    return "def " in text and _SIGNATURE.search(text) is not None


def _is_statement(text: str) -> bool:
    """Whether a text of one line is more surely a statement than a sum or a sentence."""
    return any(
        mark in text
        for mark in (
            "();",
            ");",
            "()",
            "[]",
            "==",
            "{\n",
            "</",
            "/>",
            "[:",
            "::",
            ".split(",
            "print(",
            "len(",
            "console.",
            "SELECT ",
            "np.",
            "range(",
        )
    )


def _is_sentence(line: str) -> bool:
    """Whether a line that might be code is prose: several words and a full stop."""
    return line.rstrip().endswith((".", "?", "!")) and line.count(" ") > 5


def question_of(prompt: str) -> str:
    """Return the parts of a prompt that are read: its beginning and its end, where the question is."""
    if len(prompt) <= PROMPT_CHARS:
        return prompt
    return f"{prompt[: PROMPT_CHARS // 3]}\n{prompt[-2 * PROMPT_CHARS // 3 :]}"


def answer_of(completion: str) -> str:
    """Return the part of a completion that the model reads, thinking skipped."""
    _, closed, answer = completion.rpartition("</think>")
    return (answer if closed else completion)[:ANSWER_CHARS]
