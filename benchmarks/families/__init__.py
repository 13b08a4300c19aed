"""Does the lab decode every family of causal language models?"""
