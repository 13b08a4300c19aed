"""Measurements of the lab: against the library's own decoders, against the machine's ceilings, and as it grows."""
