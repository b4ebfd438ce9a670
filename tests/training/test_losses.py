"""Every loss and weighting against its formula written out with full logits and autograd."""

from __future__ import annotations

import warnings

import pytest
import torch

from training.losses import (
    LossSettings,
    block_loss,
    initial_survival,
    resolve_gamma,
    slot_weights,
    update_survival,
)

A, K, H, V = 7, 5, 12, 50
SURVIVAL = torch.tensor([0.9, 0.5, 0.2, 0.001])


def random_blocks(dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(A, K, H, generator=generator, dtype=dtype, requires_grad=True)
    head = torch.randn(V, H, generator=generator, dtype=dtype)
    final = torch.randn(A, K - 1, H, generator=generator, dtype=dtype)
    labels = torch.randint(V, (A, K - 1), generator=generator)
    # Half of the labels are what the drafter says, so that streaks and CAP have something to work on.
    right = torch.rand(A, K - 1, generator=generator) < 0.5
    labels = torch.where(right, (hidden[:, 1:] @ head.T).argmax(-1), labels)
    mask = (torch.arange(K - 1) < torch.tensor([4, 4, 0, 2, 1, 4, 3])[:, None]).bool()
    return hidden, labels, mask, head, final


def reference(hidden, labels, mask, head, final, settings: LossSettings):
    """The loss of every slot and its weight, one slot after the other."""
    losses, weights = {}, {}
    gamma = settings.gamma or K / 2
    for a in range(A):
        chances = []
        for s in range(1, K):
            if not mask[a, s - 1]:
                continue
            logits = head @ hidden[a, s]
            logq, label = logits.log_softmax(0), labels[a, s - 1]
            loss = -(1 - settings.soft_kl) * logq[label]
            if settings.soft_kl:
                t = settings.temperature
                p = (head @ final[a, s - 1] / t).softmax(0)
                loss = loss + settings.soft_kl * t * t * (p * (p.log() - (logits / t).log_softmax(0))).sum()
            if settings.cap and logits.argmax() == label:
                loss = loss - settings.cap * (logq.exp() * logq).sum()
            losses[a, s] = loss
            chances.append((1 - settings.dpace_alpha) * logq[label].exp().item() + settings.dpace_alpha)
        for s in range(1, len(chances) + 1):
            if settings.weighting == "gamma":
                weights[a, s] = float(torch.exp(torch.tensor(-(s - 1) / gamma)))
            elif settings.weighting == "survival":
                weights[a, s] = max(float(SURVIVAL[s - 1]), 0.01)
            else:
                ends = range(s, len(chances) + 1)
                weights[a, s] = sum(float(torch.tensor(chances[:m]).prod()) for m in ends)
    return losses, weights


CASES = {
    "hard cross-entropy, gamma": LossSettings(),
    "own gamma": LossSettings(gamma=3.0),
    "soft KL": LossSettings(soft_kl=1.0),
    "blend at a temperature": LossSettings(soft_kl=0.3, temperature=2.0),
    "CAP": LossSettings(cap=0.5),
    "all at once": LossSettings(soft_kl=0.4, temperature=1.5, cap=0.2, weighting="dpace"),
    "survival": LossSettings(weighting="survival"),
    "D-PACE": LossSettings(weighting="dpace", dpace_alpha=0.3),
}


@pytest.mark.parity
@pytest.mark.parametrize("chunk_bytes", [1, 4 * 4 * V * 2, 1 << 20], ids=["block by block", "two blocks", "at once"])
@pytest.mark.parametrize("name", CASES)
def test_a_loss_and_its_gradient_equal_the_formula_whatever_the_chunks(name, chunk_bytes):
    settings = CASES[name].model_copy(update={"chunk_bytes": chunk_bytes})
    hidden, labels, mask, head, final = random_blocks()
    losses, weights = reference(hidden, labels, mask, head, final, settings)
    expected = sum(weights[at] * losses[at] for at in losses)
    (gradient,) = torch.autograd.grad(expected, hidden)

    found = block_loss(hidden, labels, mask, head, settings, final, SURVIVAL)
    (3 * found.loss_sum).backward()
    torch.testing.assert_close(found.loss_sum.item(), expected.item(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(float(found.weight_sum), sum(weights.values()), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(hidden.grad, 3 * gradient, rtol=1e-5, atol=1e-5)
    for (a, s), loss in losses.items():
        torch.testing.assert_close(found.loss_AS[a, s - 1].item(), loss.item(), rtol=1e-5, atol=1e-5)
    assert not found.loss_AS[~mask].any() and not found.weight_AS[~mask].any() and not found.correct_AS[~mask].any()


@pytest.mark.parity
def test_correct_slots_and_likeliest_tokens_are_those_of_the_full_logits():
    hidden, labels, mask, head, _ = random_blocks()
    found = block_loss(hidden, labels, mask, head, LossSettings(), tree_blocks=3)
    logits = (hidden[:, 1:] @ head.T).detach()
    assert torch.equal(found.correct_AS, (logits.argmax(-1) == labels) & mask)
    # Blocks 0, 1, 3, 4, 5 and 6 have labels; three of them, evenly spread.
    assert found.tree_blocks.tolist() == [0, 3, 5]
    logprobs = logits.float().log_softmax(-1)[found.tree_blocks]
    torch.testing.assert_close(found.tree_logprobs_MSC, logprobs.sort(-1, descending=True).values)
    order = logprobs.argsort(-1, descending=True)
    place = (order == labels[found.tree_blocks, :, None]).int().argmax(-1)
    assert torch.equal(found.tree_label_rank_MS, torch.where(mask[found.tree_blocks], place, V))


def test_labels_far_too_unlikely_for_float32_have_a_finite_loss():
    hidden, labels, mask, head, _ = random_blocks(torch.float32)
    loud = (hidden.detach() * 1000).requires_grad_()
    found = block_loss(loud, labels, mask, head, LossSettings())
    found.loss_sum.backward()
    assert found.loss_sum.isfinite() and loud.grad.isfinite().all()


@pytest.mark.parity
def test_a_bfloat16_head_gives_nearly_the_float32_loss():
    hidden, labels, mask, head, final = random_blocks(torch.float32)
    settings = LossSettings(soft_kl=0.3)
    exact = block_loss(hidden, labels, mask, head, settings, final)
    rough = block_loss(hidden, labels, mask, head.bfloat16(), settings, final.bfloat16())
    torch.testing.assert_close(rough.loss_sum, exact.loss_sum, rtol=0.02, atol=0)


def test_blocks_without_labels_give_a_loss_of_zero():
    hidden, labels, mask, head, _ = random_blocks()
    found = block_loss(hidden, labels, torch.zeros_like(mask), head, LossSettings(), tree_blocks=4)
    found.loss_sum.backward()
    assert found.loss_sum == 0 and found.weight_sum == 0 and not hidden.grad.any() and found.tree_blocks.numel() == 0


def test_gamma_follows_the_block_size():
    assert [resolve_gamma(LossSettings(), size) for size in (8, 10, 16)] == [4, 5, 7]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_gamma(LossSettings(gamma=10), 16) == 10


def test_a_gamma_that_does_not_fit_the_block_size_warns_and_says_what_fits():
    with pytest.warns(UserWarning, match="loss.gamma is 4, but blocks of 16 are trained with about 7"):
        resolve_gamma(LossSettings(gamma=4), 16)


def test_survival_follows_the_streaks_and_late_slots_keep_a_little_weight():
    survival = initial_survival(5)
    for _ in range(600):
        labelled, survived = torch.tensor([10.0, 10, 10, 0]), torch.tensor([8.0, 4, 0, 0])
        survival = update_survival(survival, labelled, survived, decay=0.98)
    torch.testing.assert_close(survival, torch.tensor([0.8, 0.4, 0.0, 1.0]), atol=1e-4, rtol=0)
    weights = slot_weights(LossSettings(weighting="survival"), 5, survival)
    torch.testing.assert_close(weights, torch.tensor([0.8, 0.4, 0.01, 1.0]), atol=1e-4, rtol=0)
