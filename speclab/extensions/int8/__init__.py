"""A draft without training: the target's own weights, rounded to 8 bits (`--draft int8`)."""
