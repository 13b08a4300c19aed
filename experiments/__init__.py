"""What compare.py is made of: arms in turns, checks, prices, the plan, the sweeps. It imports the scripts."""
