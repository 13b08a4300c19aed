"""Measurements of the lab: against the library's own decoders, and against the machine's ceilings."""
