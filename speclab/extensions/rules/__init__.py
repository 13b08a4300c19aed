"""Further rules by which drafted tokens are judged: block verification, the rule that follows the target, two lossy."""
