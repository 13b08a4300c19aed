"""What the scripts of the Speculative Decoding Lab share. Nothing here imports a top-level script."""
