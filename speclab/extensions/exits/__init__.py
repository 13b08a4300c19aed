"""Early exit: the first layers of the target draft, with an adapter."""
