"""Models with recurrent layers (Mamba, gated delta rule, short convolution), whose states cannot be cropped."""
