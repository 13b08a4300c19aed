"""The exercises' command: their checks, and the lab's scripts with a learner's own functions in them.

It belongs to a clone: exercises/, solutions/, tests/exercises/ and docs/chapters/ are not in the wheel, nor is this.
"""
