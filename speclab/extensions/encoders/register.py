"""Adds the family of models to the lab."""

from speclab.system.extensions import add_family

add_family("speclab.extensions.encoders.family:ENCODER_DECODER")
