"""Plans: how fast speculation will be at every draft length, told from a run of the baseline."""
