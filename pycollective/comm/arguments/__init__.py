"""The arguments of a call: arrays and how they are cut, operators, factors and options."""
