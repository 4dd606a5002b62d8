"""What attributes and distill share: a map from data to a few numbers, and its uses."""
