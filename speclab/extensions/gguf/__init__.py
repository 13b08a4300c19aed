"""Models in GGUF files, the one file that llama.cpp reads: converted once, then loaded and checked like every model."""
