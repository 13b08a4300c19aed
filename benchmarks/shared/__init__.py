"""What several benchmarks share: the head and the page of a record, and heads that learn side by side."""
