"""Which shard each document goes to, and in which order it lies there.

Every shard should be a small copy of the whole: the same number of rows (give or take one), the same number of tokens, the
same mix of domains. Dealing a shuffled deck gets within a few per cent; cutting by length gets the tokens and loses the rows.
Here each domain is dealt in groups of one row per shard, longest rows first, the longest of a group to the lightest
shard, and what is left over is evened out by swapping rows of one domain between the heaviest and the lightest shard.

Order comes from a keyed hash of the document's id, never from the order of input files.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

EVEN_ENOUGH = 1e-3
"""Swapping stops when the heaviest shard is within this fraction of the mean of the lightest."""

_SWAPS_PER_SHARD = 40


def hash_keys(names: Sequence[str], *, seed: int, purpose: str) -> np.ndarray:
    """Return a uint64 key per name that depends on nothing but the name, the seed and what it is used for."""
    salt = f"{seed}\0{purpose}\0".encode()
    digests = (xxhash.xxh3_64_intdigest(salt + name.encode("utf-8", "surrogatepass")) for name in names)
    return np.fromiter(digests, dtype=np.uint64, count=len(names))


def deal(lengths: np.ndarray, domains: np.ndarray, keys: np.ndarray, num_shards: int) -> list[np.ndarray]:
    """Return, for each shard, the documents in it in their order.

    Args:
        lengths: int [num_documents], tokens.
        domains: int [num_documents], a code per domain.
        keys: uint64 [num_documents], distinct for distinct documents; ties are broken by position.

    Returns:
        `num_shards` arrays of document indices. Rows per shard differ by at most one, so do rows of a domain per shard.
    """
    shard_of = np.full(len(lengths), -1, dtype=np.int64)
    rows = np.zeros(num_shards, np.int64)
    names, domain_of = np.unique(domains, return_inverse=True)
    tokens = np.zeros((len(names), num_shards), np.int64)  # by domain

    def place(domain: int, members: np.ndarray, places: np.ndarray) -> None:
        shard_of[members] = places
        tokens[domain, places] += lengths[members]
        rows[places] += 1

    longest_first = np.lexsort((keys, -lengths.astype(np.int64)))
    groups: list[tuple[int, np.ndarray]] = []
    for domain in range(len(names)):
        members = longest_first[domain_of[longest_first] == domain]
        num_full = len(members) - len(members) % num_shards
        groups.extend((domain, group) for group in members[:num_full].reshape(-1, num_shards))
        # The remainder, the shortest rows, goes to shards that have fewest rows; the full groups then even it out.
        lightest = np.lexsort((tokens.sum(axis=0), rows))[: len(members) - num_full]
        place(domain, members[num_full:], lightest[np.argsort(tokens.sum(axis=0)[lightest], kind="stable")])
    for domain, group in sorted(groups, key=lambda g: int(lengths[g[1][-1]]) - int(lengths[g[1][0]])):  # coarsest first
        place(domain, group, np.argsort(tokens.sum(axis=0) + tokens[domain], kind="stable"))
    _swap_until_even(shard_of, lengths, domain_of, keys, tokens.sum(axis=0))
    order = np.lexsort((keys, shard_of))
    return np.split(order, np.cumsum(rows)[:-1])


def _swap_until_even(
    shard_of: np.ndarray, lengths: np.ndarray, domains: np.ndarray, keys: np.ndarray, tokens: np.ndarray
) -> None:
    """Exchange rows of one domain between heavy and light shards while that brings the extremes closer."""
    for _ in range(_SWAPS_PER_SHARD * len(tokens)):
        by_tokens = np.argsort(tokens, kind="stable")
        light, heavy = int(by_tokens[0]), int(by_tokens[-1])
        if tokens[heavy] - tokens[light] <= EVEN_ENOUGH * tokens.mean():
            return
        pairs = [(heavy, int(other)) for other in by_tokens[:-1]] + [
            (int(other), light) for other in by_tokens[-2:0:-1]
        ]
        for down, up in pairs:
            gap = int(tokens[down] - tokens[up])
            swap = _best_swap(
                np.flatnonzero(shard_of == down), np.flatnonzero(shard_of == up), gap, lengths, domains, keys
            )
            if swap is not None:
                break
        else:
            return
        moved = int(lengths[swap[0]]) - int(lengths[swap[1]])
        shard_of[swap[0]], shard_of[swap[1]] = up, down
        tokens[down] -= moved
        tokens[up] += moved


def _best_swap(
    heavy: np.ndarray, light: np.ndarray, gap: int, lengths: np.ndarray, domains: np.ndarray, keys: np.ndarray
) -> tuple[int, int] | None:
    """Return the pair (from heavy, from light) of one domain whose difference is nearest half the gap, if it helps."""
    best: tuple[int, int, int] | None = None
    for domain in np.intersect1d(domains[heavy], domains[light]):
        downs = heavy[domains[heavy] == domain]
        ups = light[domains[light] == domain]
        downs = downs[np.lexsort((keys[downs], lengths[downs]))]
        ups = ups[np.lexsort((keys[ups], lengths[ups]))]
        wanted = lengths[downs].astype(np.int64) - gap // 2
        nearest = np.clip(np.searchsorted(lengths[ups], wanted), 0, len(ups) - 1)
        for candidate in (nearest, np.maximum(nearest - 1, 0)):
            moved = lengths[downs].astype(np.int64) - lengths[ups[candidate]]
            miss = np.abs(2 * moved - gap)
            index = int(np.argmin(miss))
            if miss[index] < gap and (best is None or miss[index] < best[0]):
                best = (int(miss[index]), int(downs[index]), int(ups[candidate[index]]))
    return None if best is None else (best[1], best[2])
