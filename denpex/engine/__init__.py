"""Pure functions from captured facts to a verdict: no clock, file, environment, network or randomness."""
