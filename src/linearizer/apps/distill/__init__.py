"""What a network gives, as a Linearizer."""
