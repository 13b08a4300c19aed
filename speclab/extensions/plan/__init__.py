"""Plans: how fast speculation will be at every draft length, predicted from a run of the baseline."""
