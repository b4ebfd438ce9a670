"""The whole pipeline on a machine without a GPU, with a small real target that a Python package carries."""
