"""Text to token ids, by the fastest library that proves itself equal to the target's own tokenizer.

gigatoken and fastokens (extra `fast`) encode ten to thirty times as fast as Hugging Face tokenizers where they support
a vocabulary. "Support" is not taken on trust: each candidate must give identical ids for the first texts of the build and
for a list of hostile strings, or it is passed over, with the reason, for the next. The tokenizer itself is always last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Encode = Callable[[Sequence[str]], list[np.ndarray]]
"""Texts to int32 ids, no special tokens added; markup of special tokens inside a text becomes those tokens."""

EncoderName = Literal["gigatoken", "fastokens", "huggingface"]

HOSTILE = (
    "",
    " ",
    "\n\n \t\r\n\u00a0\u2003\u2028\u200b\ufeff",
    "a" * 3000,
    " " * 700 + "x" + "\n" * 300,
    "".join(chr(code) for code in range(256)),
    "0123456789 00000 3.14159 1,000,000 1e-9 \u0661\u0662\u0663 \u00bd\u00b2 0x1F600",
    "don't DON'T we'll we\u2019ll I'M they'Ve 's 'S 'Re",
    "<|im_start|>user\n<|im_end|><|endoftext|></s><s>[INST]<start_of_turn>model<think></think><|eot_id|>",
    "<|im_start|> <|im_end|>  <|IM_END|> < |im_end| > <|unknown|> <unk> <pad>",
    "def f(x):\n\treturn {**x, 'k': [i for i in range(10)]}  # comment\r\n\r\n",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f \uc548\ub155\ud558\uc138\uc694 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 \u1200\u1208",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u2764\ufe0f \U0001d4d7\U0001d4ee",
    "e\u0301 \u00e9 \u1e9b\u0323 \ufb01 \u2126 \uff21 \u212b a\u0328\u0301\u0302\u0303",
    "\ufffd\ufffe\uffff\U0010ffff\ue000\x00\x01\x04\x1b[0m\x7f\x80\x9f",
    "https://example.org/a?b=c&d=%20#e user@example.org C:\\Temp\\new",
    "I\u0307\u0130\u0131\u017f \u03a3\u03c3\u03c2 \u00df\u1e9e \u01c5",
    "a\u0000b\r\rc\u0085d\u2029e\u180ef\u3000g",
    "foo_bar-baz...!?!?**bold** __it__ ``` ~~~ ---- ==== $$x^2$$ \\frac{1}{2}",
)
"""Where tokenizers differ: whitespace runs, digits, contractions, markup, scripts, joiners, normal forms, controls."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The encoder that a build uses, and why not a faster one."""

    name: EncoderName
    passed_over: dict[str, str]
    """Faster candidates by name, with the reason."""


def choose(tokenizer: Any, probe: Sequence[str], *, fast: bool = True) -> Choice:
    """Return the fastest encoder whose ids equal the tokenizer's on `probe` and on HOSTILE.

    Args:
        tokenizer: a transformers tokenizer.
        probe: texts as the build will encode them.
        fast: try the fast libraries at all.
    """
    passed_over: dict[str, str] = {}
    if not fast:
        return Choice("huggingface", passed_over)
    texts = [*HOSTILE, *probe]
    expected = encoder("huggingface", tokenizer)(texts)
    for name in ("gigatoken", "fastokens"):
        reason = _why_not(name, tokenizer, texts, expected)
        if reason is None:
            return Choice(name, passed_over)
        passed_over[name] = reason
    return Choice("huggingface", passed_over)


def encoder(name: EncoderName, tokenizer: Any) -> Encode:
    """Return the encoder of that name for a transformers tokenizer.

    Raises:
        ImportError: the library is not installed.
        ValueError, RuntimeError, NotImplementedError: it does not support this tokenizer.
    """
    if name == "huggingface":
        return _huggingface(tokenizer)
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise NotImplementedError("the tokenizer is not a tokenizers.Tokenizer")
    description = tokenizer.backend_tokenizer.to_str()
    if name == "gigatoken":
        import gigatoken

        giga = gigatoken.Tokenizer.from_json(description)
        return lambda texts: _split(giga.encode_batch(list(texts), parallel=False)) if texts else []
    import fastokens

    fast = fastokens.Tokenizer.from_json_str(description)
    return lambda texts: [np.asarray(encoding.ids, np.int32) for encoding in fast.encode_batch(list(texts))]


def _huggingface(tokenizer: Any) -> Encode:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda texts: [
            np.asarray(ids, np.int32) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        ]

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, np.int32) for encoding in encodings]

    return encode


def _split(encoded: Any) -> list[np.ndarray]:
    """Return the rows of a ragged awkward array as views of its flat content."""
    import awkward  # here: it comes with gigatoken

    counts = awkward.to_numpy(awkward.num(encoded, axis=1))
    flat = awkward.to_numpy(awkward.flatten(encoded, axis=1)).astype(np.int32)
    return np.split(flat, np.cumsum(counts)[:-1])


def _why_not(name: EncoderName, tokenizer: Any, texts: Sequence[str], expected: list[np.ndarray]) -> str | None:
    """Return why a candidate cannot stand in for the tokenizer, or None if it can."""
    try:
        found = encoder(name, tokenizer)(texts)
    except ImportError:
        return "not installed"
    except (ValueError, RuntimeError, NotImplementedError, TypeError, OSError, KeyError) as error:
        return f"refused: {' '.join(str(error).split())[:200]}"
    for text, ours, theirs in zip(texts, expected, found, strict=True):
        if not np.array_equal(ours, theirs):
            return f"other ids for {text[:40]!r}"
    return None
