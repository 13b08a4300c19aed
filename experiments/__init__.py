"""What compare.py is made of: arms in turns, explanations, plans and sweeps. Imports the scripts; nothing imports it but compare.py."""
