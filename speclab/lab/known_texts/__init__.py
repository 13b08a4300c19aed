"""What a draft would have done along a known text: its rounds, and the probabilities that its tokens are accepted."""
