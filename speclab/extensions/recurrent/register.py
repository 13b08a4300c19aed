"""Adds the family of models to the lab."""

from speclab.system.extensions import FAMILIES

FAMILIES.append("speclab.extensions.recurrent.layers:RECURRENT")
