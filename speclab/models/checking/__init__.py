"""Whether a loaded model decodes with a cache as it does without one, and how far rounding alone moves its logits."""
