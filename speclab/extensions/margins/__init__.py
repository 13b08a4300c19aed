"""Where drafts are wrong: acceptance against the margin between the target's first two choices."""
