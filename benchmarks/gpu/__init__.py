"""A command that measures everything about a GPU that is worth knowing: `python -m benchmarks.gpu --out FOLDER`."""
