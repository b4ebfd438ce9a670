"""The training step against a plain implementation of DFlash, and against a peer where one is installed, in one run.

Every contender runs in a process of its own, on the same seeded weights and tensors (`train_contenders.py`): one step to warm
up, then a few timed ones, the fastest of which counts. Memory is what the step adds to its inputs at its peak: resident
size on a CPU, allocated bytes on a GPU. `matmul_share` is the time that the step's indispensable matrix products take at the
rate of a large product on the same machine, over the time of the step.

    python benchmarks/train.py --quick                # demo size: 128 anchors of 8, 2 layers; about a minute
    python benchmarks/train.py                        # 512 anchors of 16, 5 layers, 2,048 tokens of context, and growth
    python benchmarks/train.py --dtype bfloat16
    python benchmarks/train.py --growth               # our step alone over context, anchors and vocabulary
    python benchmarks/train.py --clock cpu --threads 1   # on a machine that others use: CPU seconds, not wall time

`speculators` is timed where it can be imported; install it without its dependencies, which ask for other builds of torch's
companions: `pip install --no-deps speculators==0.9.0 loguru`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace

import torch

from benchmarks.train_contenders import CONTENDERS, Case, prepare

DEMO = Case(context=2048, anchors=128, block_size=8, layers=2, vocab=49_152)
PUBLISHED = Case(context=2048, anchors=512, block_size=16, layers=5, vocab=49_152)
"""Block, layers and anchors as DFlash was published, on a small target."""
WIDE_QUICK = Case(context=256, anchors=64, block_size=8, layers=1, vocab=248_320)
WIDE = Case(context=512, anchors=128, block_size=16, layers=2, vocab=248_320)
"""The vocabulary of Qwen3.5 and 3.6, as large as the plain step fits in 24 GB."""
GROWTH = {"context": (1024, 2048, 4096), "anchors": (128, 256, 512), "vocab": (49_152, 98_304, 196_608)}


def main() -> None:
    arguments = _parse()
    if arguments.child:
        print(json.dumps(_measure(arguments)))
        return
    if arguments.growth:
        print(json.dumps(_growth(arguments)))
        return
    case, wide = (DEMO, WIDE_QUICK) if arguments.quick else (PUBLISHED, WIDE)
    ours, plain = (_run(arguments, name, case) for name in ("ours", "plain"))
    wide_ours, wide_plain = (_run(arguments, name, wide) for name in ("ours", "plain"))
    figures = {
        "case": asdict(case),
        "dtype": arguments.dtype,
        "clock": arguments.clock,
        "threads": arguments.threads,
        "ours_step_s": ours["step_s"],
        "plain_step_s": plain["step_s"],
        "plain_over_ours_step": plain["step_s"] / ours["step_s"],
        "loss_difference": abs(plain["loss"] - ours["loss"]),
        "ours_memory_bytes": ours["memory_bytes"],
        "plain_memory_bytes": plain["memory_bytes"],
        "wide_ours_memory_bytes": wide_ours["memory_bytes"],
        "wide_plain_memory_bytes": wide_plain["memory_bytes"],
        "plain_over_ours_memory": wide_plain["memory_bytes"] / wide_ours["memory_bytes"],
        "matmul_flops_per_s": ours["matmul_flops_per_s"],
        "matmul_share": case.matmul_flops() / ours["matmul_flops_per_s"] / ours["step_s"],
    }
    if importlib.util.find_spec("speculators"):
        peer = _run(arguments, "speculators", case)
        figures["peer_step_s"] = peer["step_s"]
        figures["peer_memory_bytes"] = peer["memory_bytes"]
        figures["peer_over_ours_step"] = peer["step_s"] / ours["step_s"]
    if not arguments.quick:
        figures |= _growth(arguments)
    print(json.dumps(figures))


def _growth(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return seconds and bytes of our step for growing context, anchors and vocabulary, the rest as in the demo."""
    figures: dict[str, dict[str, float]] = {}
    for field, sizes in GROWTH.items():
        found = {str(size): _run(arguments, "ours", replace(DEMO, **{field: size})) for size in sizes}
        for name in ("step_s", "memory_bytes"):
            figures[f"growth_{field}_{name}"] = {size: one[name] for size, one in found.items()}
    return figures


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--growth", action="store_true", help="growth of our step alone")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=3, help="timed steps, after one to warm up")
    parser.add_argument("--child", choices=tuple(CONTENDERS), help=argparse.SUPPRESS)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(arguments: argparse.Namespace, contender: str, case: Case) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.train_speed", "--child", contender, "--case", json.dumps(asdict(case))]
    for name in ("dtype", "device", "clock", "threads", "steps"):
        command += [f"--{name}", str(getattr(arguments, name))]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    )
    if done.returncode:
        raise SystemExit(f"{contender} failed on {case} with exit status {done.returncode}")
    figures = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{contender:12} {case}: {figures['step_s']:.2f} s a step, {figures['memory_bytes'] / 1e9:.2f} GB", flush=True
    )
    return figures


def _measure(arguments: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    inputs = prepare(Case(**arguments.case), dtype, arguments.device)
    step = CONTENDERS[arguments.child](inputs)
    before = _reset_peak(arguments.device)
    loss = step()
    memory_bytes = _peak(arguments.device) - before
    seconds = min(_timed(step, arguments) for _ in range(arguments.steps))
    figures = {"step_s": seconds, "memory_bytes": memory_bytes, "loss": loss}
    if arguments.child == "ours":
        left, right = (torch.randn(2048, 2048).to(arguments.device, dtype) for _ in range(2))
        product = min(_timed(lambda: left @ right, arguments) for _ in range(10))
        figures["matmul_flops_per_s"] = 2 * 2048**3 / product
    return figures


def _timed(work: object, arguments: argparse.Namespace) -> float:
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    _settle(arguments.device)
    started = clock()
    work()
    _settle(arguments.device)
    return clock() - started


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _reset_peak(device: str) -> int:
    """Forget earlier peaks; return the bytes in use now."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    with open("/proc/self/clear_refs", "w") as control:
        control.write("5")
    return _status("VmRSS")


def _peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else _status("VmHWM")


def _status(field: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


if __name__ == "__main__":
    main()
