"""Word shingles and MinHash signatures, vectorised over many texts at once.

The signature is datasketch's `affine32` scheme (MurmurHash3 finalizer, then `a * h + b mod 2**32`, minimum over the set)
over 32-bit shingle hashes of our own: feed `shingle_hashes` to `datasketch.MinHash(hashfunc=int)` and the same numbers
come out. A word is a maximal run of ASCII letters, digits, underscores and two-byte characters, lower-cased; a character
of three or four bytes (CJK, Indic scripts, most symbols) is a word of its own. A text with fewer words than a shingle
takes is one shingle; a text without words has none.

Speed comes from work per word instead of per byte: one `bytes.translate` lower-cases and blanks all separators, word
boundaries are where the blanks begin and end, and a word is hashed eight bytes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

EMPTY_SIGNATURE = np.uint32(2**32 - 1)
"""Value of every permutation for a text without words, as datasketch has it."""

_CHUNK_BYTES = 256 * 1024
"""Text hashed at once: temporaries stay in the second-level cache, which is worth a factor of two."""

_CHUNK_SHINGLES = 32 * 1024
"""Shingles permuted at once, one permutation after the other: 128 KB."""

_SPACE = 0x20
_WIDE = 0xE0  # first byte of three-byte UTF-8 sequences; 0xF0 and above begin four-byte ones

# Odd 64-bit constants: the golden ratio (Steele et al., SplitMix64, 2014) and the multipliers of its finalizer.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

_KEEP_BYTES = np.array([(1 << (8 * min(length, 8))) - 1 for length in range(9)], dtype=np.uint64)


def shingle_hashes(texts: Sequence[str], *, words: int = 5, mask_digits: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the shingle hashes of each text, in reading order, repeats included.

    Args:
        words: words per shingle.
        mask_digits: read every digit as 0, so that texts which differ only in numbers have equal shingles.

    Returns:
        hashes: uint32 [num_shingles], those of text i are `hashes[starts[i]:starts[i + 1]]`.
        starts: int64 [num_texts + 1].
    """
    hashes, lengths = [np.empty(0, np.uint32)], [np.zeros(1, np.int64)]
    for chunk in _chunks(texts):
        word_hashes, word_starts = word_hashes_of(chunk, mask_digits=mask_digits)
        chunk_hashes, chunk_lengths = _shingle(word_hashes, word_starts, words)
        hashes.append(chunk_hashes)
        lengths.append(chunk_lengths)
    return np.concatenate(hashes), np.cumsum(np.concatenate(lengths))


def minhash(hashes: np.ndarray, starts: np.ndarray, *, num_perm: int = 128, seed: int = 1) -> np.ndarray:
    """Return the affine32 signatures, uint32 [num_texts, num_perm], of sets of 32-bit hashes laid out as above."""
    factor, offset = permutations(num_perm, seed)
    mixed = _fmix32(hashes)
    signatures = np.full((num_perm, len(starts) - 1), EMPTY_SIGNATURE, dtype=np.uint32)
    filled = np.flatnonzero(np.diff(starts))
    # Texts are taken together up to about a chunk, so that temporaries stay in cache and loops are long.
    groups = np.searchsorted(starts[filled], np.arange(0, len(hashes), _CHUNK_SHINGLES)[1:])
    for group in np.split(filled, np.unique(groups)):
        if not len(group):
            continue
        begin = starts[group[0]]
        part = mixed[begin : starts[group[-1] + 1]]
        bounds = starts[group] - begin
        permuted = np.empty_like(part)
        for permutation in range(num_perm):
            np.multiply(part, factor[permutation], out=permuted)
            np.add(permuted, offset[permutation], out=permuted)
            signatures[permutation, group] = np.minimum.reduceat(permuted, bounds)
    return np.ascontiguousarray(signatures.T)


def permutations(num_perm: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `a` (odd) and `b` of the affine32 permutations, uint32 [num_perm] each, as datasketch 2.0 draws them."""
    generator = np.random.RandomState(seed)
    factor = generator.randint(0, 1 << 31, num_perm, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    return factor, generator.randint(0, 1 << 32, num_perm, dtype=np.uint32)


def word_hashes_of(texts: Sequence[str], *, mask_digits: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return 64-bit hashes of the words of each text, in reading order.

    Returns:
        hashes: uint64 [num_words], those of text i are `hashes[starts[i]:starts[i + 1]]`.
        starts: int64 [num_texts + 1].
    """
    encoded = [_encode(text) for text in texts]
    buffer = b" " + b"\n".join(encoded).translate(_TABLES[mask_digits]) + b" " * 9
    text_starts = np.cumsum([1] + [len(text) + 1 for text in encoded])
    begins, ends = _word_bounds(np.frombuffer(buffer, dtype=np.uint8))
    return _hash_words(buffer, begins, ends - begins), np.searchsorted(begins, text_starts)


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut a list of texts into runs of about `_CHUNK_BYTES` characters."""
    begin = size = 0
    for index, text in enumerate(texts):
        size += len(text)
        if size >= _CHUNK_BYTES:
            yield texts[begin : index + 1]
            begin, size = index + 1, 0
    if begin < len(texts):
        yield texts[begin:]


def _encode(text: str) -> bytes:
    """Encode a text; letters beyond ASCII are lower-cased here, ASCII ones by the table."""
    if text.isascii():
        return text.encode("ascii")
    return text.lower().encode("utf-8", "replace")


def _table(mask_digits: bool) -> bytes:
    """Map bytes: letters to lower case, word bytes to themselves, everything else to a space."""
    table = bytearray([_SPACE]) * 256
    for byte in b"abcdefghijklmnopqrstuvwxyz0123456789_":
        table[byte] = byte
    for byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ":
        table[byte] = byte + 32
    for byte in range(0x80, 0x100):
        table[byte] = byte
    if mask_digits:
        for byte in b"123456789":
            table[byte] = ord("0")
    return bytes(table)


_TABLES = {False: _table(False), True: _table(True)}


def _word_bounds(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where words begin and end (exclusive) in a buffer that begins and ends with spaces."""
    in_word = text != _SPACE
    if text.max() < _WIDE:
        edges = np.flatnonzero(in_word[1:] != in_word[:-1]) + 1
        return edges[0::2], edges[1::2]
    begins = in_word.copy()
    begins[1:] &= ~in_word[:-1]
    begins |= text >= _WIDE
    begins[3:] |= in_word[3:] & (text[:-3] >= _WIDE) & (text[:-3] < 0xF0)
    begins[4:] |= in_word[4:] & (text[:-4] >= 0xF0)
    ends = in_word[:-1] & (~in_word[1:] | begins[1:])
    return np.flatnonzero(begins), np.flatnonzero(ends) + 1


def _hash_words(buffer: bytes, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Hash each word eight bytes at a time; only words longer than that take another turn."""
    windows = np.ndarray(shape=(len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))
    hashes = (windows[begins] & _KEEP_BYTES[np.minimum(lengths, 8)]) * _GOLDEN
    hashes ^= hashes >> np.uint64(32)
    longer = np.flatnonzero(lengths > 8)
    done = 8
    while len(longer):
        rest = lengths[longer] - done
        piece = windows[begins[longer] + done] & _KEEP_BYTES[np.minimum(rest, 8)]
        mixed = (hashes[longer] ^ piece) * _MIX_1
        hashes[longer] = mixed ^ (mixed >> np.uint64(29))
        longer = longer[rest > 8]
        done += 8
    return hashes


def _shingle(word_hashes: np.ndarray, word_starts: np.ndarray, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Combine each run of `words` word hashes inside one text; return uint32 hashes and their number per text."""
    num_words = np.diff(word_starts)
    lengths = np.where(num_words == 0, 0, np.maximum(num_words - words + 1, 1))
    padded = np.concatenate([word_hashes, np.zeros(words - 1, np.uint64)])
    at_every_word = _combine([padded[place : place + len(word_hashes)] for place in range(words)])
    is_first = np.ones(len(word_hashes), dtype=bool)
    places = np.arange(words)
    ends = word_starts[1:][num_words >= words]
    is_first[ends[:, None] - places[1:]] = False  # the last words of a text begin no shingle
    short = (num_words > 0) & (num_words < words)
    begins, inside = word_starts[:-1][short], places < num_words[short, None]
    own = begins[:, None] + places
    is_first[own[inside]] = False
    is_first[begins] = True
    at_every_word[begins] = _combine(np.where(inside, padded[own], np.uint64(0)).T)
    return at_every_word[is_first], lengths


def _combine(word_hashes: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Return uint32 hashes of sequences of words; `word_hashes[i]` holds the uint64 hashes of every sequence's word i."""
    combined = np.zeros(len(word_hashes[0]), dtype=np.uint64)
    shifted = np.empty_like(combined)
    for word in word_hashes:
        combined *= _GOLDEN
        combined += word
        combined ^= np.right_shift(combined, np.uint64(31), out=shifted)
    combined *= _MIX_2
    combined >>= np.uint64(32)
    return combined.astype(np.uint32)


def _fmix32(hashes: np.ndarray) -> np.ndarray:
    """MurmurHash3's 32-bit finalizer (Appleby, 2011), a bijection that spreads structured input."""
    hashes = hashes ^ (hashes >> np.uint32(16))
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))
