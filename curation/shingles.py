"""Word shingles and MinHash signatures, vectorised over many texts at once.

The signature is datasketch's `affine32` scheme (MurmurHash3 finalizer, then `a * h + b mod 2**32`, minimum over the set)
over 32-bit shingle hashes of our own: feed `shingle_hashes` to `datasketch.MinHash(hashfunc=int)` and the same numbers
come out. A word is a maximal run of ASCII letters, digits, underscores and two-byte characters, lower-cased; a character
of three or four bytes (CJK, Indic scripts, most symbols) is a word of its own. A text with fewer words than a shingle
takes is one shingle; a text without words has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def shingle_hashes(texts: Sequence[str], *, words: int = 5, mask_digits: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the shingle hashes of each text, in reading order, repeats included.

    Returns:
        hashes: uint32 [num_shingles], those of text i are `hashes[starts[i]:starts[i + 1]]`.
        starts: int64 [num_texts + 1].
    """
    raise NotImplementedError


def minhash(hashes: np.ndarray, starts: np.ndarray, *, num_perm: int = 128, seed: int = 1) -> np.ndarray:
    """Return the affine32 signatures, uint32 [num_texts, num_perm], of sets of 32-bit hashes laid out as above."""
    raise NotImplementedError
