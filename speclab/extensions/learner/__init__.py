"""Checks the exercises of the chapters, and runs the scripts with your functions (check.py)."""
