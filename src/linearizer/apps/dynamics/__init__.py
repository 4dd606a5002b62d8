"""States to states at any time, by one generator."""
