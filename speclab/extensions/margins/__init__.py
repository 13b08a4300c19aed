"""What no draft can be sure of: acceptance against the margin between the target's first two choices."""
