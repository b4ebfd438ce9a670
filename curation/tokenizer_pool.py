"""Tokenising a corpus: chunks of rows over processes, each chunk a file of ids that is there or not.

The tokenizer is loaded only if some row lacks ids, in the parent to choose the encoder and in each worker to use it. What a
chunk becomes depends on its rows alone, so neither the number of workers nor an interruption changes it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from curation import documents, pools
from curation.chat_template import ChatTemplate
from curation.corpus import Corpus
from curation.documents import Documents
from curation.encoders import Choice, EncoderName, choose, encoder
from curation.target import Origin
from curation.tokenization import TextEncoding, TokenizationSettings, tokenize_rows

CHUNK_ROWS = 2000
"""Rows per chunk: a few MB of text, some seconds of work at most."""

_CHUNKS_PER_PROCESS = 50
"""Processes are replaced after so many chunks: fast encoders cache what they have seen, without bound."""

_PROBE_ROWS = 200
_WORTH_A_POOL_ROWS = 4000
"""Below this, starting processes costs more than they save."""


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """What a worker needs to load the target's tokenizer as the parent did."""

    name: str
    revision: str | None
    trust_remote_code: bool
    template_kwargs: dict[str, Any]
    template: str | None
    encoder: EncoderName = "huggingface"


@dataclass(frozen=True, slots=True)
class TokenizedCorpus:
    """The documents of a corpus, and what encoded those rows that had no ids."""

    documents: Documents
    choice: Choice | None = None
    """None where every row had ids."""
    tokenizer: dict[str, Any] = field(default_factory=dict)
    """Digests of the tokenizer and the template that rendered them, as in `run.json`; empty where every row had ids."""


def tokenize_corpus(
    corpus: Corpus,
    positions: np.ndarray,
    origin: Origin,
    settings: TokenizationSettings,
    folder: Path,
    workers: int = 1,
    progress: Callable[[str, int, int], None] = lambda step, done, total: None,
    pool: pools.Pool = "processes",
) -> TokenizedCorpus:
    """Tokenise the rows at `positions`, chunk by chunk, into `folder`; chunks that are there already are kept.

    Raises:
        ValueError: rows lack ids and no usable tokenizer is known.
    """
    chunks = [positions[start : start + CHUNK_ROWS] for start in range(0, len(positions), CHUNK_ROWS)]
    lacks_ids = ~corpus.facts["has_ids"].gather(positions).to_numpy()
    source, choice, described = None, None, {}
    if lacks_ids.any():
        source = tokenizer_source(origin, settings, int(lacks_ids.sum()))
        tokenizer = load_tokenizer(source)
        described = _describe(tokenizer, ChatTemplate(tokenizer, source.template_kwargs, source.template))
        choice = choose(tokenizer, _probe(corpus, positions[lacks_ids][:_PROBE_ROWS]), fast=settings.encoder == "auto")
        source = dataclasses.replace(source, encoder=choice.name)
    todo = [(number, chunk) for number, chunk in enumerate(chunks) if not documents.is_written(folder, number)]
    if pool == "processes" and sum(len(chunk) for _, chunk in todo) < _WORTH_A_POOL_ROWS:
        workers = 1
    # Workers read text only, and may run in another working directory.
    shards = [path.absolute() for path in corpus.shards]
    slim = dataclasses.replace(corpus, shards=shards, signatures=np.empty((0, 0), np.uint32))
    start_args = (slim, source, settings, folder.resolve())
    results = pools.run(
        _do_chunk,
        todo,
        start=_Worker,
        start_args=start_args,
        workers=workers,
        pool=pool,
        tasks_per_process=_CHUNKS_PER_PROCESS,
    )
    for done, _ in enumerate(results, start=len(chunks) - len(todo) + 1):
        progress("tokenise", done, len(chunks))
    return TokenizedCorpus(documents.load(folder, range(len(chunks))), choice, described)


def tokenizer_source(origin: Origin, settings: TokenizationSettings, num_rows: int) -> TokenizerSource:
    """Return where the target's tokenizer is.

    Raises:
        ValueError: neither the settings nor the origin name one.
    """
    target = origin.target or {}
    name = settings.tokenizer or target.get("model")
    if name is None:
        raise ValueError(
            f"{num_rows:,} rows have no token ids and nothing names the target they are for: give --tokenizer FOLDER_OR_HUB_ID"
        )
    template = None
    if settings.tokenizer is None and target.get("chat_template") is not None:
        path = Path(target["chat_template"])
        if not path.is_file():
            raise ValueError(
                f"the manifest's chat template {path} is not here; run from its folder, or give --tokenizer"
            )
        template = path.read_text(encoding="utf-8")
    return TokenizerSource(
        name=name,
        revision=target.get("revision") if settings.tokenizer is None else None,
        trust_remote_code=settings.trust_remote_code,
        template_kwargs={**(target.get("chat_template_kwargs") or {}), **settings.chat_template_kwargs},
        template=template,
    )


def load_encoding(source: TokenizerSource) -> TextEncoding:
    """Load the tokenizer, its template and its encoder.

    Raises:
        ValueError: it cannot be loaded, or its template cannot be used.
    """
    tokenizer = load_tokenizer(source)
    template = ChatTemplate(tokenizer, source.template_kwargs, source.template)
    return TextEncoding(template, encoder(source.encoder, tokenizer))


def load_tokenizer(source: TokenizerSource) -> Any:
    """Return the transformers tokenizer.

    Raises:
        ValueError: it cannot be loaded.
    """
    from transformers import AutoTokenizer  # brings torch; only rows without ids need it

    try:
        return AutoTokenizer.from_pretrained(
            source.name, revision=source.revision, trust_remote_code=source.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"cannot load the tokenizer of {source.name!r}: {reason}") from error


def _probe(corpus: Corpus, positions: np.ndarray) -> list[str]:
    """Return texts as the build will encode them."""
    return [
        text
        for row in corpus.rows(positions)
        for text in (row["completion"], *(message["content"] for message in row["messages"]))
    ]


def _describe(tokenizer: Any, template: ChatTemplate) -> dict[str, Any]:
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    whole = backend.to_str() if backend is not None else vocabulary
    return {
        "tokenizer_sha256": {"tokenizer": hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()},
        "chat_template_sha256": hashlib.sha256(template.text.encode()).hexdigest(),
    }


class _Worker:
    """What a worker holds: the corpus it reads and the tokenizer it reads with."""

    def __init__(
        self, corpus: Corpus, source: TokenizerSource | None, settings: TokenizationSettings, folder: Path
    ) -> None:
        self.corpus, self.settings, self.folder = corpus, settings, folder
        self.encoding = load_encoding(source) if source is not None else None


def _do_chunk(worker: _Worker, chunk: tuple[int, np.ndarray]) -> None:
    number, positions = chunk
    rows = zip(positions.tolist(), worker.corpus.rows(positions), strict=True)
    documents.write_chunk(worker.folder, number, tokenize_rows(rows, worker.encoding, worker.settings))
