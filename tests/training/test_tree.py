"""Best-first trees against the obvious way to build them."""

from __future__ import annotations

import itertools

import pytest
import torch

from training.tree import build_tree, tree_streaks


def random_block(seed: int, num_slots: int = 5, num_candidates: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num_slots, num_candidates, generator=generator, dtype=torch.float64)
    return logits.log_softmax(dim=-1).sort(dim=-1, descending=True).values


@pytest.mark.parity
def test_a_tree_holds_the_likeliest_paths_of_all():
    for seed in range(20):
        logprobs = random_block(seed, num_slots=3, num_candidates=4)
        every = [path for depth in (1, 2, 3) for path in itertools.product(range(4), repeat=depth)]
        every.sort(key=lambda path: -sum(float(logprobs[d, r]) for d, r in enumerate(path)))
        tree = build_tree(logprobs, 12)
        paths: list[tuple[int, ...]] = []
        for parent, rank in zip(tree.parents, tree.ranks, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), rank))
        assert set(paths) == set(every[:12])
        assert tree.depths == [len(path) for path in paths]
        assert tree.logprobs == sorted(tree.logprobs, reverse=True)


def test_ancestors_are_the_path_to_the_root():
    tree = build_tree(torch.tensor([[0.9, 0.1], [0.8, 0.2]], dtype=torch.float64).log(), 4)
    assert (tree.parents, tree.depths, tree.ranks) == ([-1, 0, 0, -1], [1, 2, 2, 1], [0, 0, 1, 1])
    assert tree.ancestors().int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]


def test_a_tree_larger_than_the_block_holds_everything():
    assert len(build_tree(random_block(0, 2, 3), 100).parents) == 3 + 9


@pytest.mark.parity
def test_streaks_of_many_blocks_equal_those_of_the_trees_built_one_by_one():
    sizes = (1, 4, 8, 15, 16, 32, 64)
    blocks = torch.stack([random_block(seed, 7, 64) for seed in range(400)])
    ranks = torch.randint(0, 5, (400, 7), generator=torch.Generator().manual_seed(9))
    ranks[torch.rand(400, 7, generator=torch.Generator().manual_seed(8)) < 0.5] = 0
    ranks[::17, 3] = 64
    found = tree_streaks(blocks, ranks, sizes)
    expected = [
        [_streak(build_tree(block, size), rank) for size in sizes] for block, rank in zip(blocks, ranks, strict=True)
    ]
    assert found.tolist() == expected


def test_a_tree_of_k_nodes_need_not_contain_the_greedy_chain():
    logprobs = torch.tensor([[0.55, 0.45], [0.5, 0.3], [0.5, 0.3]], dtype=torch.float64).log()[None]
    assert tree_streaks(logprobs, torch.zeros(1, 3, dtype=torch.int64), (2, 3)).tolist() == [[1, 2]]


def _streak(tree, ranks) -> int:
    """Follow the true tokens from the root."""
    children = {(parent, rank): node for node, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True))}
    node, depth = -1, 0
    while depth < len(ranks) and (node, int(ranks[depth])) in children:
        node, depth = children[node, int(ranks[depth])], depth + 1
    return depth
