"""Drafts by models with another tokenizer than the target's."""
