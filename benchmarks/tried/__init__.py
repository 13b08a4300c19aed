"""Methods of 2026 that were tried and not kept: each is a drafter beside the lab's own, and one command runs all."""
