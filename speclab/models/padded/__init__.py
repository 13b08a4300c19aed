"""The lab's pair padded to a size: it writes the same text and costs as much as a larger model."""
