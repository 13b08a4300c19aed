"""Looks inside a decoding: every round in a browser, shapes, a profile; a report of a comparison."""
