"""The run beside the engine alone: `python benchmarks/datagen.py [--quick]`. The measurement is in `datagen_speed.py`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # A script's own folder comes first on the path, where this file hides the package of the same name.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

    import tyro

    from benchmarks.datagen_speed import Options, main

    main(tyro.cli(Options))
