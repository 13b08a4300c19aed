"""The target's own head for further tokens (multi-token prediction, MTP), from its checkpoint (`--draft mtp`)."""
