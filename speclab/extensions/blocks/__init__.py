"""A draft with a head that proposes a block of tokens in one pass (DFlash, DSpark)."""
