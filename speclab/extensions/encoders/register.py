"""Tells the lab of the family of models."""

from speclab.system.extensions import add_family

add_family("speclab.extensions.encoders.family:ENCODER_DECODER")
