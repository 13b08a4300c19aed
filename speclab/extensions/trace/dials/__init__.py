"""The page with dials: its data, from a committed record or from one decoding, and what puts it into the templates."""
