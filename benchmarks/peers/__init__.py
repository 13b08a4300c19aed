"""The lab's decoders against others: `python -m benchmarks.peers`."""
