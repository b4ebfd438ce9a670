"""Best-first draft trees (DDTree, github.com/liranringel/ddtree): which continuations of a block are worth verifying together.

The drafter gives a distribution for every slot on its own, so the probability of a path is the product along it. The tree of
k nodes holds the k likeliest paths: start with the likeliest first token; pop the best, then push its next-likeliest sibling
and its likeliest child. The root (the anchor's token) is not counted: k nodes are verified with k + 1 tokens. A tree need not
contain the greedy chain, so its streak can be shorter than the chain's.

`build_tree` makes one tree to decode with. `tree_streaks` only asks how deep the true continuation lies in it, for many blocks
at once, by carrying one bit per node.

Letters: M blocks, S slots, C candidates per slot, in descending order.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftTree:
    """Nodes in the order in which they were chosen: parents come before their children."""

    parents: list[int]
    """Parent of every node, -1 for children of the root."""
    depths: list[int]
    """Depth of every node, 1 for children of the root: the node stands `depth` places after the anchor."""
    ranks: list[int]
    """Place of the node's token among the candidates of its slot."""
    logprobs: list[float]
    """Log-probability of the path from the root to the node, not increasing."""

    def ancestors(self) -> Tensor:
        """Return bool [nodes, nodes]: column is an ancestor of row, or the row itself."""
        mask = torch.eye(len(self.parents), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask


def build_tree(logprobs_SC: Tensor, num_nodes: int) -> DraftTree:
    """Return the best-first tree of at most `num_nodes` nodes over the candidates of a block's slots."""
    logprobs = logprobs_SC.double().tolist()
    tree = DraftTree([], [], [], [])
    # Heap entries: minus path log-probability, order of pushing (ties go to the earlier), parent, its log-probability, depth, rank.
    heap = [(-logprobs[0][0], 0, -1, 0.0, 1, 0)]
    pushed = 1
    while heap and len(tree.parents) < num_nodes:
        minus, _, parent, above, depth, rank = heapq.heappop(heap)
        node = len(tree.parents)
        tree.parents.append(parent)
        tree.depths.append(depth)
        tree.ranks.append(rank)
        tree.logprobs.append(-minus)
        if rank + 1 < len(logprobs[depth - 1]):
            heapq.heappush(heap, (-(above + logprobs[depth - 1][rank + 1]), pushed, parent, above, depth, rank + 1))
            pushed += 1
        if depth < len(logprobs):
            heapq.heappush(heap, (minus - logprobs[depth][0], pushed, node, -minus, depth + 1, 0))
            pushed += 1
    return tree


def tree_streaks(logprobs_MSC: Tensor, label_rank_MS: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return int64 [M, len(sizes)]: tokens of the true continuation that lie in each block's tree of that many nodes.

    `label_rank_MS` is the true token's place among the candidates of its slot, C where it is not there or there is no label.
    A tree of k nodes needs C >= k, or the whole vocabulary. `sizes` ascend.
    """
    frontier = _Frontier(logprobs_MSC, label_rank_MS, sizes[-1])
    streak_M = torch.zeros(logprobs_MSC.shape[0], dtype=torch.int64, device=logprobs_MSC.device)
    streaks = []
    for node in range(sizes[-1]):
        depth_M, true_M = frontier.pop(node)
        streak_M = torch.where(true_M, torch.maximum(streak_M, depth_M), streak_M)
        if node + 1 in sizes:
            streaks.append(streak_M)
    return torch.stack(streaks, dim=1)


class _Frontier:
    """The heaps of M blocks side by side: every pop frees one place and fills at most two."""

    def __init__(self, logprobs_MSC: Tensor, label_rank_MS: Tensor, num_nodes: int) -> None:
        self.logprobs, self.label_rank = logprobs_MSC.double(), label_rank_MS
        num_blocks, device = logprobs_MSC.shape[0], logprobs_MSC.device
        self.rows = torch.arange(num_blocks, device=device)
        # One column per push: the first node, then sibling and child of the node popped at each step.
        shape = (num_blocks, 2 * num_nodes + 1)
        self.score = torch.full(shape, -torch.inf, dtype=torch.float64, device=device)
        self.above = torch.zeros(shape, dtype=torch.float64, device=device)
        self.depth = torch.ones(shape, dtype=torch.int64, device=device)
        self.rank = torch.zeros(shape, dtype=torch.int64, device=device)
        self.parent_true = torch.ones(shape, dtype=torch.bool, device=device)
        self.score[:, 0] = self.logprobs[:, 0, 0]

    def pop(self, step: int) -> tuple[Tensor, Tensor]:
        """Take every block's best node, push its sibling and child; return its depth, and whether it lies on the true path.

        A block with nothing left returns false.
        """
        num_slots, num_candidates = self.logprobs.shape[1:]
        score_M, best_M = self.score.max(dim=1)
        at = (self.rows, best_M)
        live_M = score_M > -torch.inf
        depth_M, rank_M, above_M, parent_true_M = self.depth[at], self.rank[at], self.above[at], self.parent_true[at]
        true_M = live_M & parent_true_M & (self.label_rank[self.rows, depth_M - 1] == rank_M)
        self.score[at] = -torch.inf

        sibling = self.logprobs[self.rows, depth_M - 1, (rank_M + 1).clamp(max=num_candidates - 1)]
        exists_M = live_M & (rank_M + 1 < num_candidates)
        self._push(2 * step + 1, exists_M, above_M + sibling, above_M, depth_M, rank_M + 1, parent_true_M)
        child = self.logprobs[self.rows, depth_M.clamp(max=num_slots - 1), 0]
        exists_M = live_M & (depth_M < num_slots)
        self._push(2 * step + 2, exists_M, score_M + child, score_M, depth_M + 1, torch.zeros_like(rank_M), true_M)
        return depth_M, true_M

    def _push(
        self,
        column: int,
        exists_M: Tensor,
        score_M: Tensor,
        above_M: Tensor,
        depth_M: Tensor,
        rank_M: Tensor,
        parent_true_M: Tensor,
    ) -> None:
        self.score[:, column] = torch.where(exists_M, score_M, -torch.inf)
        self.above[:, column], self.depth[:, column], self.rank[:, column] = above_M, depth_M, rank_M
        self.parent_true[:, column] = parent_true_M
