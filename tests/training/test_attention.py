"""Every backend equals the dense reference, gradients included, and the reference equals the sentence that defines it."""

from __future__ import annotations

import pytest
import torch

from training.attention import KeysValues, block_attention, visible
from training.blocks import lay_out_blocks, sample_anchors
from training.structured_attention import GROUP_BLOCKS, GROUP_SPAN, plan_spans

WINDOWS = [None, 1, 3, 7, 40]


def layout_of(batch, budget=24, block_size=5, seed=0):
    anchor_A, valid_A = sample_anchors(batch, budget, torch.Generator().manual_seed(seed))
    return lay_out_blocks(batch, anchor_A, valid_A, block_size)


def random_inputs(layout, dtype=torch.float64, num_queries=6, num_keys=2, width=8):
    torch.manual_seed(5)
    blocks, slots, tokens = layout.num_blocks, layout.block_size, layout.num_tokens
    shapes = [(blocks, slots, num_queries, width)]
    shapes += [(tokens, num_keys, width)] * 2 + [(blocks, slots, num_keys, width)] * 2
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def attend(inputs, layout, window, backend):
    queries, keys, values, own_keys, own_values = inputs
    return block_attention(queries, KeysValues(keys, values), KeysValues(own_keys, own_values), layout, window, backend)


@pytest.fixture
def batch(random_batch):
    # The last document's first token is supervised: a block there has no context at all.
    return random_batch([60, 9, 300, 2], prompt=0)


@pytest.mark.parity
@pytest.mark.parametrize("window", WINDOWS)
def test_visible_pairs_are_those_that_the_definition_names(random_batch, window):
    batch = random_batch([12, 9], prompt=3)
    layout = layout_of(batch, budget=6)
    context_AKT, own_AKK = visible(layout, window)
    for block in range(6):
        anchor, valid = int(layout.anchor_A[block]), bool(layout.valid_A[block])
        for slot in range(5):
            query = int(batch.position_T[anchor]) + slot
            for token in range(len(batch.input_ids_T)):
                same = int(batch.document_T[token]) == int(batch.document_T[anchor])
                near = window is None or query - int(batch.position_T[token]) < window
                assert bool(context_AKT[block, slot, token]) == (valid and same and token < anchor and near)
            for other in range(5):
                causal = window is None or 0 <= slot - other < window
                assert bool(own_AKK[block, slot, other]) == causal


@pytest.mark.parity
@pytest.mark.parametrize("window", WINDOWS)
def test_the_structured_path_and_its_gradients_equal_the_dense_reference(batch, window):
    layout = layout_of(batch, budget=60)
    results = {}
    for backend in ("reference", "structured"):
        inputs = random_inputs(layout)
        out = attend(inputs, layout, window, backend)
        out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype))
        results[backend] = [out.detach(), *(x.grad for x in inputs)]
    for found, expected in zip(results["structured"], results["reference"], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parity
@pytest.mark.parametrize("window", [None, 7])
def test_the_structured_path_in_bfloat16_stays_close_to_float32(batch, window):
    layout = layout_of(batch)
    exact = attend(random_inputs(layout, torch.float32), layout, window, "reference")
    found = attend([x.detach().bfloat16() for x in random_inputs(layout, torch.float32)], layout, window, "structured")
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=0.05, atol=0.05)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("window", WINDOWS)
def test_the_mask_that_a_gpu_compiles_gives_what_the_dense_reference_gives(batch, window):
    layout = layout_of(batch)
    inputs = [x.detach() for x in random_inputs(layout, torch.float32)]
    found, expected = (attend(inputs, layout, window, backend) for backend in ("flex", "reference"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parity
@pytest.mark.skipif(not torch.cuda.is_available(), reason="flex attention has a backward pass on CUDA only")
@pytest.mark.parametrize("window", WINDOWS)
def test_flex_attention_and_its_gradients_on_a_gpu_equal_the_dense_reference(batch, window):
    layout = layout_of(batch)
    on_gpu = type(layout)(**{name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in vars(layout).items()})
    results = {}
    for backend in ("reference", "flex"):
        inputs = [x.detach().cuda().requires_grad_() for x in random_inputs(layout, torch.float32, width=16)]
        attend(inputs, on_gpu, window, backend).sum().backward()
        results[backend] = [x.grad for x in inputs]
    for found, expected in zip(results["flex"], results["reference"], strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("window", WINDOWS)
def test_scores_computed_in_vain_are_few_and_every_visible_pair_is_computed_once(random_batch, window):
    layout = layout_of(random_batch([700, 30, 900]), budget=96)
    context_AKT, _ = visible(layout, window)
    scored = torch.zeros(context_AKT.shape, dtype=torch.int64)
    vain = 0
    for span in plan_spans(layout, window):
        assert span.last - span.first <= GROUP_BLOCKS
        part = scored[span.first : span.last, :, span.start : span.stop]
        seen = torch.ones(part.shape, dtype=torch.bool) if span.seen_AKT is None else span.seen_AKT
        part += seen
        vain += int((~seen).sum())
        assert span.seen_AKT is None or span.stop - span.start <= GROUP_SPAN + (window or 0)
    assert torch.equal(scored, context_AKT.long())
    if window is None:
        assert vain < 0.1 * int(context_AKT.sum())


@pytest.mark.leak
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("backend", ["reference", "structured", "flex"])
def test_keys_and_values_that_a_block_may_not_see_change_nothing_to_the_bit(batch, backend, window):
    layout = layout_of(batch, budget=40)
    inputs = [x.detach() for x in random_inputs(layout, torch.float32)]
    before = attend(inputs, layout, window, backend)
    block = 17
    context_AKT, _ = visible(layout, window)
    unseen = ~context_AKT[block].any(dim=0)
    changed = [x.clone() for x in inputs]
    changed[1][unseen] += 100
    changed[2][unseen] += 100
    others = torch.arange(40) != block
    for own in changed[3:]:
        own[others] -= 50
    assert torch.equal(attend(changed, layout, window, backend)[block], before[block])


def test_a_backend_on_the_wrong_device_says_which_one_to_use(batch):
    layout = layout_of(batch)
    with pytest.raises(ValueError, match="on a CPU use 'structured'"):
        attend(random_inputs(layout, torch.float32), layout, None, "flex")
