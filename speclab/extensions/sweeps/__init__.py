"""Changes one setting and keeps the rest still: draft length, acceptance, temperature and more."""
