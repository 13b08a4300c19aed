"""Several texts side by side: the loops over a batch, and drafts for it."""
