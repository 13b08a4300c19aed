"""Everything that is worth knowing about a GPU, in one command: `python -m benchmarks.gpu --out FOLDER`."""
