"""Checks the exercises of the chapters, and runs the scripts with your functions (check.py).

It belongs to a clone: exercises/, solutions/, tests/exercises/ and docs/chapters/ are not in the wheel, nor is this.
"""
