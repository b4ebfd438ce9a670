"""The training step beside a plain one and a peer: `python benchmarks/train.py [--quick]`. The measurement is in `train_speed.py`."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # A script's own folder comes first on the path, where profile.py hides the standard module that torch imports.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("benchmarks.train_speed", run_name="__main__")
