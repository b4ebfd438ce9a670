"""Decode prompts with vLLM and a drafter, in a process of its own; print what vLLM counted as the last line.

    python -m tests.training.vllm_child '{"model": ..., "drafter": ..., "num_proposals": 5, "prompts": [[...]], ...}'

`mend` normalises the drafter's context keys layer by layer: vLLM's CPU kernel gives every layer the first one's weights.
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
}


def mend() -> None:
    import torch
    from vllm.model_executor.models import qwen3_dflash

    def layer_by_layer(self, all_k):  # type: ignore[no-untyped-def]  # takes the place of vLLM's method
        normed = [
            torch.nn.functional.rms_norm(keys.float(), keys.shape[-1:], weight.float(), self._rms_norm_eps)
            for keys, weight in zip(all_k, self._k_norm_weights, strict=True)
        ]
        return torch.stack(normed).to(all_k.dtype)

    owner = next(
        found
        for found in vars(qwen3_dflash).values()
        if isinstance(found, type) and "_normalize_context_k" in vars(found)
    )
    owner._normalize_context_k = layer_by_layer


def main() -> None:
    asked = json.loads(sys.argv[1])
    if asked["mend"]:
        mend()
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=asked["model"],
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=1,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config={
            "method": "dflash",
            "model": asked["drafter"],
            "num_speculative_tokens": asked["num_proposals"],
        },
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=asked["max_tokens"], ignore_eos=True, detokenize=False)
    answers = engine.generate([{"prompt_token_ids": ids} for ids in asked["prompts"]], sampling, use_tqdm=False)
    counted = {metric.name: metric.value for metric in engine.get_metrics() if hasattr(metric, "value")}
    print(
        json.dumps(
            {
                "rounds": counted["vllm:spec_decode_num_drafts"],
                "accepted": counted["vllm:spec_decode_num_accepted_tokens"],
                "texts": [list(answer.outputs[0].token_ids) for answer in answers],
            }
        )
    )


if __name__ == "__main__":
    main()
