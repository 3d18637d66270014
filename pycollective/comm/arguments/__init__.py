"""What a call is given: arrays and how they are cut, operators, factors and options."""
