"""The lab's pair padded to a size: its text at the price of a larger model."""
